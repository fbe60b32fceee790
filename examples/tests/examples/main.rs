//! The examples, as processes of their own, and what the manual says of them.

mod loopback;
mod manual;
mod process;
mod rack;
