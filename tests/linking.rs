//! The build script of the program. It links development builds at a fixed address.
//!
//! In an unoptimized program, the loader would have to relocate hundreds of thousands of addresses if the kernel chose
//! the load address. This takes half of the startup time, and the end-to-end tests start the program about 19,000
//! times. Release builds keep random addresses.

use std::env::var;

fn main() {
    println!("cargo::rerun-if-changed=tests/linking.rs");
    let is = |name: &str, expected: &str| var(name).as_deref() == Ok(expected);
    if is("PROFILE", "debug")
        && is("CARGO_CFG_TARGET_OS", "linux")
        && is("CARGO_CFG_TARGET_ENV", "gnu")
    {
        println!("cargo::rustc-link-arg-bin=zmove=-no-pie");
        println!("cargo::rustc-link-arg-bin=zmove-far=-no-pie");
        // Tests send the helper through ssh.
        println!("cargo::rustc-link-arg-bin=zmove-far=-Wl,--strip-all");
    }
}
