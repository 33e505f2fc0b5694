"""A step of a whole dense decoder in one C call, which avoids Python between the layers of a small model."""
