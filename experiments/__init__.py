"""What each candidate costs, and the frontier that follows."""
