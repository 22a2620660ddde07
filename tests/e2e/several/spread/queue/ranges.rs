//! Failed ranges of a large file.

use super::*;
use crate::support::hooks::HookedDisk;

/// Leads a job with a large file. The mode of the file changes before each read for which `is_hit` returns `true`.
/// Returns the numbers of published and failed files, and the messages.
fn lead_meddled(
    is_hit: impl Fn(u64) -> bool + Send + Sync + 'static,
) -> (Spread, (u64, u64), Vec<String>) {
    let spread = Spread::new(1);
    let huge = spread.source().join("huge");
    std::fs::create_dir_all(spread.source()).unwrap();
    paint(huge.clone(), 70 << 20);
    let reads = AtomicU64::new(0);
    let mut job = spread.job();
    job.config.file_io = HookedDisk::before_read(move || {
        let number = reads.fetch_add(1, Ordering::SeqCst);
        if is_hit(number) {
            crate::support::tree::set_mode(
                &huge,
                if number.is_multiple_of(2) {
                    0o600
                } else {
                    0o640
                },
            );
        }
    });
    let (queue, failures) = (
        Arc::new(LocalQueue::default()),
        Arc::new(Failures::default()),
    );
    let observer = Arc::clone(&failures) as Arc<dyn Observer>;
    let end = Spread::lead_job(job, &queue, spread.receivers(), observer);
    let counters = end.tally.counters();
    let told = std::mem::take(&mut *failures.0.lock().unwrap());
    (spread, (counters.files, counters.failed), told)
}

/// The user does not have to run the command again.
#[test]
fn a_range_that_fails_is_no_failure_if_its_file_arrives() {
    let (spread, files_and_failed, told) = lead_meddled(|number| number == 0);
    assert_eq!((files_and_failed, told), ((1, 0), Vec::new()));
    spread.assert_done();
}

#[test]
fn a_large_file_whose_ranges_fail_again_is_reported_once() {
    let (spread, files_and_failed, told) = lead_meddled(|_each| true);
    assert_eq!(files_and_failed, (0, 1));
    let [line] = &told[..] else {
        panic!("{told:?}")
    };
    assert!(
        line.starts_with("sender: read '") && line.contains("huge': the file changed"),
        "{line}"
    );
    assert!(!spread.target_directory().join("huge").exists());
}
