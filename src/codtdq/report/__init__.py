"""What people look at: tables and pictures. Nothing here computes a result."""
