"""A job on a cluster seen from outside: where it is, what it waits for, why it was slow, what people want of it."""
