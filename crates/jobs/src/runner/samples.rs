//! Progress samples of attempts, for charts. The samples of a running attempt are read from its events. A few samples
//! are kept after the attempt has ended.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use super::tail::AttemptProgress;
use crate::job::JobId;
use crate::place::{JobsDirectory, private_open_options};

/// Returns up to `length_max` progress samples of an attempt. The samples cover the time from the start of the attempt
/// to its end, or to the present. A `length_max` below 2 counts as 2.
#[must_use]
pub fn samples_of(
    place: &JobsDirectory,
    id: JobId,
    attempt: u32,
    length_max: usize,
) -> Vec<AttemptProgress> {
    let read = |path: &Path| read(path, length_max).unwrap_or_default();
    let samples = read(&place.events(id, attempt));
    if samples.is_empty() {
        read(&place.samples(id, attempt))
    } else {
        samples
    }
}

/// Keeps samples of an attempt that has ended. Errors are ignored because only charts use the samples.
pub(super) fn keep(place: &JobsDirectory, id: JobId, attempt: u32) {
    let samples = read(&place.events(id, attempt), KEPT_MAX).unwrap_or_default();
    if samples.len() < KEPT_MIN {
        return;
    }
    let lines: String = samples
        .iter()
        .filter_map(|sample| serde_json::to_string(sample).ok())
        .map(|line| line + "\n")
        .collect();
    let file = private_open_options()
        .write(true)
        .create(true)
        .truncate(true)
        .open(place.samples(id, attempt));
    let _best_effort = file.and_then(|mut file| file.write_all(lines.as_bytes()));
}

/// Reads up to `length_max` samples from evenly spaced offsets of a file of events, including the first and the last
/// sample. A `length_max` below 2 counts as 2.
fn read(path: &Path, length_max: usize) -> io::Result<Vec<AttemptProgress>> {
    let file = File::open(path)?;
    let bytes = file.metadata()?.len();
    let intervals = length_max.saturating_sub(1).max(1);
    if bytes <= WHOLE_BYTES {
        let mut all = vec![0; usize::try_from(bytes).unwrap_or_default()];
        let length = read_at(&file, &mut all, 0)?;
        let samples: Vec<_> = lines(&all[..length]).collect();
        if samples.len() <= length_max {
            return Ok(samples);
        }
        let last = samples.len() - 1;
        let spread = (0..=intervals).map(|number| samples[last * number / intervals].clone());
        return Ok(spread.collect());
    }
    let mut samples: Vec<AttemptProgress> = Vec::new();
    let mut piece = vec![0; PIECE_BYTES];
    let steps = u64::try_from(intervals).unwrap_or(u64::MAX);
    let end = bytes - PIECE_BYTES as u64;
    for at in (0..=steps).map(|step| end / steps * step + end % steps * step / steps) {
        let length = read_at(&file, &mut piece, at)?;
        // The first line may be incomplete.
        let begin = piece[..length]
            .iter()
            .position(|&byte| byte == b'\n')
            .map_or(length, |begin| begin + 1);
        let found = if at == end {
            lines(&piece[begin..length]).last()
        } else {
            lines(&piece[begin..length]).next()
        };
        samples.extend(found.filter(|found| {
            samples
                .last()
                .is_none_or(|last| last.seconds < found.seconds)
        }));
    }
    Ok(samples)
}

fn lines(bytes: &[u8]) -> impl Iterator<Item = AttemptProgress> {
    bytes
        .split(|&byte| byte == b'\n')
        .filter_map(|line| serde_json::from_slice(line).ok())
}

fn read_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<usize> {
    let mut read = 0;
    while read < bytes.len() {
        match file.read_at(&mut bytes[read..], at + read as u64)? {
            0 => break,
            more => read += more,
        }
    }
    Ok(read)
}

/// Maximum number of samples to keep of an ended attempt.
const KEPT_MAX: usize = 240;
/// Minimum number of samples for a chart.
const KEPT_MIN: usize = 3;
/// Maximum size of a file that is read as a whole, in bytes.
const WHOLE_BYTES: u64 = 256 << 10;
/// Bytes to read at each offset, enough for several lines.
const PIECE_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_spread_over_the_whole_attempt_and_kept() {
        let directory = tempfile::tempdir().unwrap();
        let place = JobsDirectory::open(&directory.path().join("jobs")).unwrap();
        let id = JobId(1);
        std::fs::create_dir(place.job(id)).unwrap();
        for count in [0_u64, 2, 100, 20_000] {
            let line = |n| {
                serde_json::to_string(&AttemptProgress {
                    bytes_done: n,
                    seconds: n as f64,
                    ..AttemptProgress::default()
                })
            };
            let lines: Vec<_> = (0..count).map(|n| line(n).unwrap()).collect();
            std::fs::write(
                place.events(id, 1),
                "{\"event\":\"w\"}\n".to_owned() + &lines.join("\n") + "\n",
            )
            .unwrap();
            let samples = samples_of(&place, id, 1, 50);
            let first_and_last = (samples.first(), samples.last());
            let done = |sample: Option<&AttemptProgress>| sample.map(|sample| sample.bytes_done);
            let (first, last) = (done(first_and_last.0), done(first_and_last.1));
            assert_eq!(
                (first, last),
                ((count > 0).then_some(0), count.checked_sub(1)),
                "of {count}"
            );
            assert!(
                samples.len() <= 50 && samples.len() >= usize::try_from(count.min(45)).unwrap(),
                "of {count}"
            );
        }
        keep(&place, id, 1);
        std::fs::remove_file(place.events(id, 1)).unwrap();
        assert!(samples_of(&place, id, 1, 300).len() > 200);
    }
}
