"""What commands about jobs on a cluster share."""
