//! Requirements for every storage engine, as functions of an engine, a directory and a kind of I/O.
//!
//! The data is `i % 251`, which reveals swapped or shifted blocks.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use zmove_disk::{DataFile, Direct, FileIo, Ring, RingConfig, StorageEngine};
use zmove_types::{BufferPool, GROUP_BYTES};

/// Sizes at which the behavior changes, each with its neighboring sizes.
const INTERESTING_SIZES: [usize; 14] = [
    0, // nothing to move
    1,
    4095, // a page, the unit of direct requests
    4096,
    4097,
    (512 << 10) - 1, // one request of a ring
    512 << 10,
    (512 << 10) + 1,
    (1 << 20) - 1, // several slices
    1 << 20,
    (1 << 20) + 1,
    GROUP - 1, // a group, the capacity of a buffer
    GROUP,
    GROUP + 1,
];
const GROUP: usize = 4 << 20;
const _: () = assert!(GROUP as u64 == GROUP_BYTES);

pub(crate) type Engine = Option<Box<dyn FileIo>>;

pub(crate) fn auto() -> Engine {
    Some(Box::new(StorageEngine::default()))
}

pub(crate) fn threads() -> Engine {
    Some(Box::new(StorageEngine::Threads))
}

pub(crate) fn uring() -> Engine {
    ring(RingConfig::default())
}

/// A ring that is always full, with the smallest parts and no registered buffers.
pub(crate) fn small_ring() -> Engine {
    ring(RingConfig {
        depth: 2,
        part_bytes: 4096,
        registered_max: 0,
    })
}

fn ring(config: RingConfig) -> Engine {
    match Ring::start(config) {
        Ok(ring) => Some(Box::new(StorageEngine::Uring(ring))),
        Err(error) => {
            skip(&error.to_string());
            None
        }
    }
}

/// Prints why a case is skipped. In the lab, where every case must run, this fails the test.
#[track_caller]
pub(crate) fn skip(reason: &str) {
    let required = std::env::var_os("ZMOVE_REQUIRE_LAB").is_some_and(|value| value == "1");
    assert!(!required, "ZMOVE_REQUIRE_LAB=1, but {reason}");
    eprintln!("skipped: {reason}");
}

pub(crate) fn both_ways(directory: &Path, case: impl Fn(&Path, Direct)) {
    for direct in [Direct::Off, Direct::On, Direct::Auto] {
        case(directory, direct);
    }
}

fn painted(bytes: usize) -> Vec<u8> {
    let lap: Vec<u8> = (0..251).collect();
    let mut data = lap.repeat(bytes.div_ceil(251));
    data.truncate(bytes);
    data
}

fn source(directory: &Path, bytes: usize, direct: Direct) -> DataFile {
    let file = tempfile::tempfile_in(directory).unwrap();
    file.write_all_at(&painted(bytes), 0).unwrap();
    // A large declared size makes `auto` choose direct I/O, regardless of the actual size.
    DataFile::for_reading(file, (bytes as u64).max(1 << 30), direct)
}

/// Reads once and compares the bytes passed to the callback with the buffer.
fn read(file_io: &dyn FileIo, file: &DataFile, offset: u64, len: usize) -> Vec<u8> {
    let mut shown = Vec::new();
    let buffer = BufferPool::new(GROUP, 1).take().unwrap();
    let (outcome, buffer) = file_io.read(file, offset, len, buffer, &mut |slice| {
        shown.extend_from_slice(slice)
    });
    outcome.unwrap();
    assert!(
        *buffer == shown[..],
        "{} bytes shown, {} in the buffer",
        shown.len(),
        buffer.len()
    );
    shown
}

/// Writes and reads files of every size in groups.
pub(crate) fn round_trips(file_io: &dyn FileIo, directory: &Path, direct: Direct) {
    let pool = BufferPool::new(GROUP, 1);
    for bytes in INTERESTING_SIZES {
        let contents = painted(bytes);
        let path = tempfile::NamedTempFile::new_in(directory)
            .unwrap()
            .into_temp_path();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let mut data = DataFile::new(file);
        data.reserve(bytes as u64, None, direct).unwrap();
        for (index, group) in contents.chunks(GROUP).enumerate().rev() {
            let mut buffer = pool.take().unwrap();
            buffer.room()[..group.len()].copy_from_slice(group);
            buffer.set_len(group.len());
            let (outcome, back) = file_io.write(&data, (index * GROUP) as u64, buffer);
            outcome.unwrap();
            assert!(*back == *group, "the buffer comes back as it was");
        }
        assert!(
            std::fs::read(&path).unwrap() == contents,
            "{bytes} bytes, {direct:?}"
        );
        let data = DataFile::for_reading(File::open(&path).unwrap(), 1 << 30, direct);
        for (index, group) in contents.chunks(GROUP).enumerate() {
            let read = read(file_io, &data, (index * GROUP) as u64, group.len());
            assert!(read == *group, "group {index} of {bytes} bytes, {direct:?}");
        }
    }
}

pub(crate) fn reads_end_with_the_file(file_io: &dyn FileIo, directory: &Path, direct: Direct) {
    for bytes in INTERESTING_SIZES
        .into_iter()
        .filter(|&bytes| bytes <= GROUP)
    {
        let file = source(directory, bytes, direct);
        assert!(
            read(file_io, &file, 0, GROUP) == painted(bytes),
            "{bytes} bytes, {direct:?}"
        );
        for offset in [bytes, bytes.next_multiple_of(4096), 2 * GROUP] {
            assert_eq!(
                read(file_io, &file, offset as u64, GROUP),
                [0_u8; 0],
                "{bytes} bytes from {offset}, {direct:?}"
            );
        }
    }
}

pub(crate) fn offsets_need_not_be_aligned(file_io: &dyn FileIo, directory: &Path, direct: Direct) {
    let file = source(directory, GROUP, direct);
    let contents = painted(GROUP);
    for (offset, len) in [(1, 100), (511, 4096), (4095, 2), (8191, 1 << 20), (4096, 5)] {
        assert!(
            read(file_io, &file, offset as u64, len) == contents[offset..offset + len],
            "{offset}+{len}"
        );
    }
    let path = tempfile::NamedTempFile::new_in(directory)
        .unwrap()
        .into_temp_path();
    let mut target = DataFile::new(File::options().read(true).write(true).open(&path).unwrap());
    target.reserve(20_000, None, direct).unwrap();
    for (offset, len) in [(1, 10_000), (10_001, 9_999), (0, 1)] {
        let mut buffer = BufferPool::new(GROUP, 1).take().unwrap();
        buffer.room()[..len].copy_from_slice(&contents[offset..offset + len]);
        buffer.set_len(len);
        file_io.write(&target, offset as u64, buffer).0.unwrap();
    }
    assert!(std::fs::read(&path).unwrap() == contents[..20_000]);
}

/// Direct requests are longer than the requested range. The callback must not get the excess bytes.
pub(crate) fn what_lies_beyond_the_request_is_not_shown(
    file_io: &dyn FileIo,
    directory: &Path,
    direct: Direct,
) {
    let file = source(directory, 3 * 4096, direct);
    for len in [1, 4097, 8191] {
        assert!(
            read(file_io, &file, 0, len) == painted(len),
            "{len} bytes, {direct:?}"
        );
    }
}

pub(crate) fn errors_give_the_buffer_back(file_io: &dyn FileIo, directory: &Path, direct: Direct) {
    let pool = BufferPool::new(GROUP, 1);
    let path = tempfile::NamedTempFile::new_in(directory)
        .unwrap()
        .into_temp_path();
    let read_only = DataFile::for_reading(File::open(&path).unwrap(), 1 << 30, direct);
    let mut buffer = pool.take().unwrap();
    buffer.set_len(GROUP);
    let (outcome, buffer) = file_io.write(&read_only, 0, buffer);
    assert_eq!(
        outcome.unwrap_err().raw_os_error(),
        Some(rustix::io::Errno::BADF.raw_os_error())
    );
    assert_eq!((buffer.capacity(), buffer.len()), (GROUP, GROUP));
    let not_a_file = DataFile::for_reading(File::open(directory).unwrap(), 1 << 30, direct);
    let (outcome, buffer) = file_io.read(&not_a_file, 0, GROUP, buffer, &mut |_| {
        panic!("nothing to show")
    });
    assert_eq!(
        outcome.unwrap_err().raw_os_error(),
        Some(rustix::io::Errno::ISDIR.raw_os_error())
    );
    assert_eq!(buffer.capacity(), GROUP);
}

pub(crate) fn a_panic_gives_the_buffer_back(
    file_io: &dyn FileIo,
    directory: &Path,
    direct: Direct,
) {
    let file = source(directory, GROUP, direct);
    let pool = BufferPool::new(GROUP, 1);
    let buffer = pool.take().unwrap();
    let mut slices = 0;
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        file_io.read(&file, 0, GROUP, buffer, &mut |_| {
            slices += 1;
            std::panic::resume_unwind(Box::new("a hasher that fails"));
        })
    }));
    assert!(unwound.is_err() && slices == 1);
    // This waits until the kernel has released the buffer.
    assert_eq!(pool.take().unwrap().capacity(), GROUP);
    assert!(read(file_io, &file, 0, GROUP) == painted(GROUP));
}

pub(crate) fn threads_share_an_engine(file_io: &dyn FileIo, directory: &Path, direct: Direct) {
    let file = &source(directory, GROUP, direct);
    let expected = &painted(GROUP);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                for round in 0..4 {
                    let offset = (thread * 4 + round) * 4096;
                    assert!(read(file_io, file, offset as u64, GROUP) == expected[offset..]);
                }
            });
        }
    });
}
