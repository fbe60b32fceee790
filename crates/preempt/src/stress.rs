//! The stress test (under construction).
