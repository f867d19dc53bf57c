//! The native host of Firstlight, as a library so that the test suite can call what the command line calls.
