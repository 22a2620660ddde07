//! What becomes of a session when a thread or task of it panics: it ends and says so, rather than wait for ever.

use std::sync::Arc;

use tokio::task::JoinSet;

use crate::store::{Context, Outcome};

/// Tells the session when the thread that has it panics.
pub(crate) struct PanicGuard<'a>(pub(crate) &'a Context);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.tell(Outcome::Panicked);
        }
    }
}

/// Starts work that looks at the target; what has ended is let go of.
pub(crate) fn start(
    tasks: &mut JoinSet<()>,
    context: &Arc<Context>,
    work: impl FnOnce(&Context) + Send + 'static,
) {
    while tasks.try_join_next().is_some() {}
    let context = Arc::clone(context);
    tasks.spawn_blocking(move || {
        let _guard = PanicGuard(&context);
        work(&context);
    });
}
