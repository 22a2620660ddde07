//! Helpers for the tests of several commands.

use zmove_types::{Event, Lock, Observer};

/// An observer that records warnings.
#[derive(Default)]
pub(super) struct Warnings(pub(super) Lock<Vec<String>>);

impl Observer for Warnings {
    fn on(&self, event: &Event) {
        if let Event::Warned { message } = event {
            self.0.lock().push(message.clone());
        }
    }
}
