"""Published observations (R9 to R18) and case T11(c), reproduced on the simulator."""
