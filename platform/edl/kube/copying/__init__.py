"""Files to and from volumes: a pod that lives for one copy, and programs in it."""
