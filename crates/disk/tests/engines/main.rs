//! Checks that all storage engines behave alike. Runs one test suite for each engine, with and without the page cache.

#![expect(
    clippy::unwrap_used,
    reason = "in a test, helpers included, a panic is the report"
)]

mod suite;

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use suite::{auto, small_ring, threads, uring};
use zmove_disk::{DataFile, Direct};

/// Generates a test for each case of the suite, for one engine.
macro_rules! engine {
    ($engine:ident, $start:expr) => {
        mod $engine {
            engine!(@cases $start; round_trips, reads_end_with_the_file, offsets_need_not_be_aligned, what_lies_beyond_the_request_is_not_shown,
                errors_give_the_buffer_back, a_panic_gives_the_buffer_back, threads_share_an_engine);
        }
    };
    (@cases $start:expr; $($case:ident),+) => {
        $(#[test] fn $case() {
            let Some(disk) = $start else { return };
            crate::suite::both_ways(&std::env::temp_dir(), |directory, direct| {
                crate::suite::$case(&*disk, directory, direct);
            });
        })+
    };
}

engine!(with_auto, crate::auto());
engine!(with_threads, crate::threads());
engine!(with_uring, crate::uring());
engine!(with_a_small_ring, crate::small_ring());

#[test]
fn memory_has_no_direct_way_and_none_is_missed() {
    let memory = PathBuf::from("/dev/shm");
    if !memory.is_dir() {
        return suite::skip("there is no /dev/shm");
    }
    for disk in [threads(), uring(), small_ring()].into_iter().flatten() {
        suite::round_trips(&*disk, &memory, Direct::On);
    }
}

#[test]
fn a_reserved_file_has_its_size() {
    for direct in [Direct::Auto, Direct::On, Direct::Off] {
        let file = tempfile::tempfile().unwrap();
        let mut data = DataFile::new(file);
        data.reserve((20 << 20) + 1, None, direct).unwrap();
        assert_eq!(data.file().metadata().unwrap().len(), (20 << 20) + 1);
    }
}

/// Allocating space for a file that fills the disk would make all other writes fail.
#[test]
fn a_file_that_would_fill_the_disk_reserves_nothing() {
    let mut data = DataFile::new(tempfile::tempfile().unwrap());
    let system = rustix::fs::fstatvfs(data.file()).unwrap();
    let oversized = system.f_bavail * system.f_frsize + (1 << 40);
    data.reserve(oversized, None, Direct::On).unwrap();
    let metadata = data.file().metadata().unwrap();
    assert_eq!((metadata.len(), metadata.blocks()), (oversized, 0));
}
