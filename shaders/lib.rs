//! The kernels.
