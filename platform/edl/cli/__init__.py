"""The commands of edl. Starts quickly: imports neither TensorFlow nor gRPC; learns about roles from files."""
