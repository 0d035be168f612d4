"""What ``edl data`` does to move files between this machine and volumes."""
