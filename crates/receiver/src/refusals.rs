//! Saying no: how it is said, and to how many at a time.
//!
//! Who is refused keeps a descriptor until it has taken the answer, and need not take it. **Invariant:** of those that have proved a
//! key which is let in few are told at a time, of each key and in all; the others are closed without a word. Strangers are told
//! while they still count as connections that have not proved one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use zmove_transport::{Channel, Fingerprint};
use zmove_types::TransferId;
use zmove_wire::{Greeting, Refusal, Role, ToSender, encode_message};

/// The refusals that are under way; clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Refusals(Arc<Mutex<HashMap<Fingerprint, usize>>>);

/// One that is being told.
#[derive(Debug)]
struct Telling {
    refusals: Refusals,
    key: Fingerprint,
}

/// How many of one key are told at a time.
const TOLD_PER_KEY_MAX: usize = 8;
/// How many of all keys are.
const TOLD_MAX: usize = 128;
/// How long a refused peer may take to take the refusal.
pub(crate) const REFUSAL_TIMEOUT: Duration = Duration::from_secs(10);
/// What a refused peer may still say before it is cut off.
const DRAIN_BYTES_MAX: u64 = 64 << 10;

impl Refusals {
    /// Refuses a peer, whatever it has to say.
    pub(crate) async fn refuse(&self, channel: Channel, refusal: impl FnOnce(Fingerprint) -> Refusal) {
        if let Some(_told) = self.begin(channel.peer()) {
            refuse(channel, refusal).await;
        }
    }

    /// Says one thing without listening, and closes.
    pub(crate) async fn say_and_close(&self, channel: Channel, answer: &[u8]) {
        if let Some(_told) = self.begin(channel.peer()) {
            say_and_close(channel, answer).await;
        }
    }

    fn begin(&self, key: Fingerprint) -> Option<Telling> {
        let mut told = self.lock();
        let few = told.values().sum::<usize>() < TOLD_MAX;
        let own = told.entry(key).or_default();
        if few && *own < TOLD_PER_KEY_MAX {
            *own += 1;
            return Some(Telling { refusals: self.clone(), key });
        }
        told.retain(|_, count| *count > 0);
        None
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Fingerprint, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        let mut told = self.refusals.lock();
        told.entry(self.key).and_modify(|count| *count -= 1);
        told.retain(|_, count| *count > 0);
    }
}

/// Refuses a peer that is counted elsewhere.
pub(crate) async fn refuse(channel: Channel, refusal: impl FnOnce(Fingerprint) -> Refusal) {
    let refusal = refusal(channel.peer());
    let mut answer = Greeting::new(Role::Control, TransferId([0; 16])).encode().to_vec();
    answer.extend(encode_message(&ToSender::Refused(refusal)));
    say_and_close(channel, &answer).await;
}

/// What the peer has sent is thrown away, so that the close does not destroy the answer on its way.
async fn say_and_close(mut stream: Channel, answer: &[u8]) {
    let said = async {
        stream.write_all(answer).await?;
        stream.shutdown().await?;
        tokio::io::copy(&mut stream.take(DRAIN_BYTES_MAX), &mut tokio::io::sink()).await
    };
    let _in_time = tokio::time::timeout(REFUSAL_TIMEOUT, said).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_are_told_of_each_key_and_in_all() {
        let refusals = Refusals::default();
        let begin = |key| refusals.begin(Fingerprint([key; 32]));
        let all: Vec<_> = (0..64).flat_map(|key| [(); 9].map(|()| key)).filter_map(begin).collect();
        assert_eq!(all.len(), TOLD_MAX);
        assert_eq!(refusals.lock().len(), TOLD_MAX / TOLD_PER_KEY_MAX);
        drop(all);
        assert!(refusals.lock().is_empty());
        assert!(begin(1).is_some());
    }
}
