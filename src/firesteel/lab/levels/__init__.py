"""The lab's levels, one file each."""
