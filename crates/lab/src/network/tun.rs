//! Opens a TUN device that delivers whole offloaded segments.
//!
//! `hosts.rs` calls this on a thread that has joined the namespace of the device. The returned file works on any
//! thread. This module contains two ioctls without a safe wrapper.
#![expect(
    unsafe_code,
    reason = "TUNSETIFF and TUNSETOFFLOAD have no safe wrapper"
)]

use std::fs::{File, OpenOptions};

use anyhow::{Context, Result};
use rustix::ioctl::{IntegerSetter, Opcode, Setter, ioctl, opcode};

/// Whether the kernel may deliver segments that are larger than the MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Segments {
    /// Up to 64 KiB in one read, never split.
    Whole,
    /// One read per packet on the wire.
    Cut,
}

/// Creates the TUN device `name` in the calling thread's network namespace.
pub(crate) fn open(name: &str, segments: Segments) -> Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/net/tun")
        .context("failed to open /dev/net/tun")?;
    attach(&file, name).context("failed to create a TUN device")?;
    offload(&file, segments).context("failed to set TUN offloads")?;
    Ok(file)
}

fn attach(file: &File, name: &str) -> rustix::io::Result<()> {
    let mut request = [0u8; INTERFACE_REQUEST_BYTES];
    assert!(
        name.len() < INTERFACE_NAME_BYTES,
        "the interface name and its NUL fit"
    );
    request[..name.len()].copy_from_slice(name.as_bytes());
    request[INTERFACE_NAME_BYTES..INTERFACE_NAME_BYTES + 2]
        .copy_from_slice(&(IFF_TUN | IFF_NO_PI | IFF_VNET_HDR).to_le_bytes());
    // SAFETY: TUNSETIFF reads and writes one `struct ifreq`, which has the size of `request`. `attach()` fills it.
    let setter = unsafe { Setter::<TUNSETIFF, _>::new(request) };
    // SAFETY: the file is /dev/net/tun, whose TUNSETIFF takes the argument that the setter passes.
    unsafe { ioctl(file, setter) }
}

fn offload(file: &File, segments: Segments) -> rustix::io::Result<()> {
    let flags = match segments {
        Segments::Whole => CHECKSUM | TSO4 | TSO6 | USO4 | USO6,
        Segments::Cut => CHECKSUM,
    };
    // SAFETY: TUNSETOFFLOAD takes its flags by value.
    let setter = unsafe { IntegerSetter::<TUNSETOFFLOAD>::new_usize(flags) };
    // SAFETY: the file is an attached TUN device, for which TUNSETOFFLOAD means what the setter says.
    unsafe { ioctl(file, setter) }
}

const INTERFACE_NAME_BYTES: usize = 16;
const INTERFACE_REQUEST_BYTES: usize = 40;
const TUNSETIFF: Opcode = opcode::write::<i32>(b'T', 202);
const TUNSETOFFLOAD: Opcode = opcode::write::<u32>(b'T', 208);
const IFF_TUN: u16 = 0x0001;
const IFF_NO_PI: u16 = 0x1000;
const IFF_VNET_HDR: u16 = 0x4000;
const CHECKSUM: usize = 0x01;
const TSO4: usize = 0x02;
const TSO6: usize = 0x04;
const USO4: usize = 0x20;
const USO6: usize = 0x40;
