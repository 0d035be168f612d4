"""What a master in a pod stands on: its right to decide (a Lease), the board it tells on, its objects' owner."""
