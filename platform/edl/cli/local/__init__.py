"""What commands about runs on this machine share."""
