//! model_files
