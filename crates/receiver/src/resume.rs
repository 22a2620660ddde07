//! The state from which a transfer resumes after an interruption: parts of large files, and the journals that record
//! them.

pub mod journal;
pub(crate) mod parts;

/// Splits groups into runs of consecutive numbers, each with its first number and at most `longest` groups.
pub(crate) fn runs_of<T>(
    groups: impl Iterator<Item = (u32, T)>,
    longest: usize,
) -> Vec<(u32, Vec<T>)> {
    let mut runs: Vec<(u32, Vec<T>)> = Vec::new();
    let mut next = None;
    for (index, value) in groups {
        match runs.last_mut() {
            Some((_, run)) if next == Some(index) && run.len() < longest => run.push(value),
            _ => runs.push((index, vec![value])),
        }
        next = index.checked_add(1);
    }
    runs
}
