//! The threads that read: as many as are wanted, within what can be started.

use std::sync::Arc;

use crate::error::SessionError;
use crate::push::threads::Threads;
use crate::read::reader::{ReaderContext, read_all};

/// All readers of one push.
pub(crate) struct Readers(Arc<ReaderContext>);

impl Readers {
    pub(crate) fn new(context: ReaderContext) -> Self {
        Self(Arc::new(context))
    }

    /// Starts readers up to so many, or lets those beyond go after what they are doing. Readers that cannot be
    /// started are done without; that there are none at all is an error.
    pub(crate) fn set(&self, wanted: usize, threads: &mut Threads) -> Result<(), SessionError> {
        let running = self.0.headcount.want(wanted);
        for number in running..wanted {
            let context = Arc::clone(&self.0);
            let started = threads.spawn(format!("zmove-read-{number}"), move || read_all(&context, number));
            if let Err(source) = started {
                self.0.headcount.stop_before(number);
                return if number == 0 { Err(SessionError::Thread(source)) } else { Ok(()) };
            }
        }
        Ok(())
    }
}
