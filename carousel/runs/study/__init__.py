"""Many runs compared: their grid, their folders, and the processes that train them."""
