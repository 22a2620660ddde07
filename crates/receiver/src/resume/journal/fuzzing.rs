//! Fuzz targets for the journal, run by `crates/fuzz`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::naming::SUFFIX;
use super::reader::{begin, read_new_records, replay};
use super::record::{BootId, Record};
use super::writer::runs;
use super::{JournalError, Unfinished, list, orphans};

const BOOT: BootId = BootId([1; 16]);

/// Reads arbitrary bytes as a journal, and checks that a rewritten journal has the same contents.
///
/// # Panics
/// The contents differ.
pub fn journal(bytes: &[u8]) {
    let begun = begin(bytes).expect("memory can be read");
    let replayed = replay(bytes).expect("memory can be read");
    let replayed = match replayed {
        Ok(replayed) => replayed,
        Err(error) => {
            return assert!(begun.is_err() || matches!(error, JournalError::TooManyFiles { .. }));
        }
    };
    assert!(replayed.end <= bytes.len() as u64);
    let unfinished = replayed.unfinished(BOOT);
    assert_eq!(begun.ok().as_ref(), Some(&unfinished.begin));
    for file in &unfinished.files {
        assert!(file.bytes_flushed() <= file.bytes_written());
        assert!(file.bytes_written() <= file.part.source.bytes);
    }
    let anew = replay(&written(&unfinished)[..])
        .expect("memory can be read")
        .expect("it was just written");
    assert_eq!(
        anew.unfinished(BOOT),
        Unfinished {
            same_boot: true,
            ..unfinished
        }
    );
}

/// Reads a journal of arbitrary records. The input contains the length (u16) and the body of each record. Valid frames
/// and checksums are added, so that every record is read.
///
/// # Panics
/// Same as [`journal`].
pub fn journal_records(bytes: &[u8]) {
    journal(&framed(bytes));
}

/// Reads the journal of a session in a shared job, once as a whole and once while it grows, and checks that both yield
/// the same records.
///
/// # Panics
/// The records differ.
pub fn job_journal(bytes: &[u8]) {
    let journal = framed(bytes);
    let mut whole = Vec::new();
    let mut position = 0;
    let take = |record, end| {
        whole.push((record, end));
        Ok(())
    };
    read_new_records(&journal[..], &mut position, take).expect("memory can be read");
    assert!(
        position <= journal.len() as u64 && whole.last().is_none_or(|(_, end)| *end == position)
    );
    let mut grown = Vec::new();
    let mut read = 0;
    let step = journal.len() / 7 + 1;
    for length in (0..journal.len()).step_by(step).chain([journal.len()]) {
        let from = usize::try_from(read).expect("it is in memory");
        let take = |record, end| {
            grown.push((record, end));
            Ok(())
        };
        read_new_records(&journal[from..length], &mut read, take).expect("memory can be read");
    }
    assert_eq!((grown, read), (whole, position));
}

/// Reads such a journal from a file, as the daemon and `zmove journal` do, and checks that listing it and taking it
/// over yield the same contents.
///
/// # Panics
/// The contents differ.
pub fn journal_files(bytes: &[u8]) {
    let directory = directory();
    let transfer = std::process::id();
    let path = directory.join(format!("{transfer:032x}-{:016x}-{:016x}{SUFFIX}", 1, 2));
    fs::write(&path, framed(bytes)).expect("there is room for a small file");
    let listed = list(directory)
        .expect("the directory can be read")
        .remove(0);
    let taken = orphans(directory)
        .expect("the directory can be read")
        .remove(0);
    match (listed.contents, taken) {
        (Ok(said), Ok(mut orphan)) => {
            assert_eq!(&said, orphan.unfinished());
            let files: Vec<_> = said.files.iter().map(|file| file.file).collect();
            files
                .iter()
                .for_each(|file| orphan.record_end(*file).expect("a record can be added"));
            orphan.remove().expect("it is there");
        }
        (Err(said), Err((_, error))) => assert_eq!(said.to_string(), error.to_string()),
        (said, taken) => panic!("{said:?} and {taken:?}"),
    }
}

fn directory() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        let directory = std::env::temp_dir().join(format!("zmove-fuzz-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory for a small file");
        directory
    })
}

/// Returns the journal that [`journal_records`] builds from its input.
pub fn framed(mut steps: &[u8]) -> Vec<u8> {
    let mut journal = Vec::new();
    while let Some((length, rest)) = steps.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes(*length));
        let (body, rest) = rest.split_at(length.min(rest.len()));
        let length = u32::try_from(body.len()).expect("it is no longer than 64 KiB");
        let record = [&length.to_le_bytes(), body].concat();
        let checksum = crc32c::crc32c(&record).to_le_bytes();
        journal.extend([&record[..], &checksum].concat());
        steps = rest;
    }
    journal
}

/// Returns the bytes of a rewritten journal.
fn written(unfinished: &Unfinished) -> Vec<u8> {
    let mut records = vec![Record::Begin(unfinished.begin.clone(), BOOT)];
    for file in &unfinished.files {
        records.push(Record::Part(file.file, file.part.clone()));
        records.extend(runs(file.file, file));
        let left = |ctime| Record::Left {
            file: file.file,
            ctime,
        };
        records.extend(file.left.map(left));
    }
    records
        .iter()
        .flat_map(|record| record.encode().expect("it was decoded within the limits"))
        .collect()
}
