"""What every implementation of a port must do, written once as classes; not collected by themselves."""
