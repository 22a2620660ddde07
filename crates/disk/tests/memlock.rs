//! Tests of io_uring under a low limit of locked memory. The ring works without registered buffers. If the limit is too
//! low for the ring itself, no ring is started.
//!
//! This is a separate program, because the limit applies to the process.

#![expect(
    clippy::unwrap_used,
    reason = "in a test, helpers included, a panic is the report"
)]

#[path = "engines/suite.rs"]
#[expect(
    dead_code,
    reason = "one case and one engine of the suite are used here"
)]
mod suite;

use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use zmove_disk::{FileIo, Ring, RingConfig, StorageEngine, Unavailable};

#[test]
fn without_locked_memory_nothing_is_missed() {
    // Threads that start after this point have lost root's exemption from the limit too.
    let mut own = capabilities(None).unwrap();
    own.effective.remove(CapabilitySet::IPC_LOCK);
    own.permitted.remove(CapabilitySet::IPC_LOCK);
    own.inheritable.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, own).unwrap();
    let both_ways = |file_io: &dyn FileIo| {
        suite::both_ways(&std::env::temp_dir(), |directory, direct| {
            suite::round_trips(file_io, directory, direct)
        });
    };
    lower_limit(1 << 20);
    let Some(file_io) = suite::uring() else {
        return;
    };
    both_ways(&*file_io);
    drop(file_io);
    lower_limit(0);
    match Ring::start(RingConfig::default()) {
        Ok(ring) => both_ways(&StorageEngine::Uring(ring)),
        Err(error) => assert!(matches!(error, Unavailable::Setup { .. }), "{error:?}"),
    }
}

fn lower_limit(bytes: u64) {
    setrlimit(
        Resource::Memlock,
        Rlimit {
            current: Some(bytes),
            maximum: Some(bytes),
        },
    )
    .unwrap();
}
