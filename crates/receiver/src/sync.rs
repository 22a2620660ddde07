//! Work that several threads share.

use std::thread;

/// Runs `work` on this thread and on one additional thread for each of `helpers`, and returns all results.
///
/// Each call of `work` runs until no work is left. If a thread cannot be started, the remaining helpers are not used.
/// Each helper is dropped when its thread ends.
pub(crate) fn run_on_several<T: Send, Helper: Send>(
    name: &str,
    helpers: impl Iterator<Item = Helper>,
    work: impl Fn() -> Vec<T> + Sync,
) -> Vec<T> {
    thread::scope(|scope| {
        let work = &work;
        let start = |helper: Helper| {
            let work = move || {
                let _until_it_ends = helper;
                work()
            };
            thread::Builder::new()
                .name(name.to_owned())
                .spawn_scoped(scope, work)
                .ok()
        };
        let helpers: Vec<_> = helpers.map_while(start).collect();
        let mut done = work();
        helpers
            .into_iter()
            .for_each(|helper| done.extend(helper.join().expect("the work does not panic")));
        done
    })
}
