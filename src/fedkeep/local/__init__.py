"""What happens on one client: the only SGD loop, evaluation, Fisher information."""
