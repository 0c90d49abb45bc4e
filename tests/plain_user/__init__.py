"""A host whose user model is none of AbstractBaseUser; `scenario` runs in its own process."""
