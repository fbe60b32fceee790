//! Builds the C part of the stress test, and nothing without the feature `stress`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "stress")]
    {
        println!("cargo::rerun-if-changed=stress/thread_locals.c");
        cc::Build::new()
            .file("stress/thread_locals.c")
            .pic(true)
            .warnings_into_errors(true)
            .compile("shinjuku_preempt_stress");
    }
}
