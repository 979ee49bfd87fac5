"""Files that survive a crash, and one line where the disk refuses them."""
