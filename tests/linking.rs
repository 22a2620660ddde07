//! The build script of the program: links development builds at a fixed address.
//!
//! The unoptimized program has hundreds of thousands of addresses that the loader has to fill in if the kernel chooses
//! where the program lies. That is half of the time that it takes to start, and the end-to-end tests start it about
//! 19,000 times. A release keeps its random addresses.

use std::env::var;

fn main() {
    println!("cargo::rerun-if-changed=tests/linking.rs");
    let is = |name: &str, expected: &str| var(name).as_deref() == Ok(expected);
    if is("PROFILE", "debug")
        && is("CARGO_CFG_TARGET_OS", "linux")
        && is("CARGO_CFG_TARGET_ENV", "gnu")
    {
        println!("cargo::rustc-link-arg-bin=zmove=-no-pie");
    }
}
