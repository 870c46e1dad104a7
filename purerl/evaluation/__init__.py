"""What an evaluation comes to: statistics of how often problems are solved, and how sure they are."""
