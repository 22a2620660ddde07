//! A copy between two other hosts. The source host sends to the target host. This side orders the copy, obtains the
//! grant for it from the target host, and follows its progress.
//!
//! If ssh starts the receiver at one or both hosts, the copy works in the same way but ends when this process ends.
//! **Invariant:** the copy is successful only if the target host has signed a receipt with the key that this side has
//! pinned.

mod hosts;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use zmove_sender::{RunState, SessionError, Summary};
use zmove_transport::{Channel, ChannelDialer, ControlReader, Fingerprint, Signed, control_pair};
use zmove_types::{Counters, Hex, NoObserver, Observer};
use zmove_wire::{
    Begin, CopyOrder, CopyResult, CopyState, GrantOrder, GrantToken, Greeting, Intent, Receipt,
    Refusal, RefusalCode, Role, SignedReceipt, SourcePath, ToReceiver, ToSender, ToSource,
    WireError, decode_message, encode_message,
};

use crate::connecting::dial::{Connector, Transferred, in_time, unless_interrupted};
use crate::error::{Causes, PullError, PushError};
use crate::notice::Notice;
use crate::pull::asking::{RequestAnswer, ask};
use crate::pull::relayed::{RelayedEvents, SenderReport};
use crate::random::fresh_transfer;
use crate::retrying::{RetryPolicy, Sessions};
use hosts::Hosts;

/// The parameters of a copy between two other hosts.
pub struct RemoteCopy<'a> {
    /// The source host, and how this side reconnects to it.
    pub source: RetryPolicy<'a>,
    /// The target host.
    pub target: Connector<'a>,
    /// The order for the source host. This library fills in the address of the target host.
    pub order: CopyOrder,
    /// The list of paths, if the order announces one.
    pub list: Option<Arc<[u8]>>,
    /// Maximum number of content bytes. Default: no limit.
    pub bytes_max: Option<u64>,
    /// Maximum number of entries. Default: no limit.
    pub entries_max: Option<u64>,
    /// Action for a running copy when this command is interrupted.
    pub after: OnInterrupt,
    /// Observer of the session's events.
    pub observer: Arc<dyn Observer>,
}

/// The state of a copy across all of its sessions.
#[derive(Debug)]
struct CopyRun {
    started: Instant,
    /// Results of the sessions so far.
    standing: RunState,
    /// Key of the target host, once it is known.
    key: Option<Fingerprint>,
    /// Id of the copy that may be running at the source host.
    id: Option<[u8; 16]>,
    told: bool,
}

/// Time limit for the answer to a grant order.
const GRANT_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for ending a copy. The job runner kills a process that takes much longer.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the source host may report that it does not know a copy that was just ordered.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval between checks whether a copy has ended.
const END_INTERVAL: Duration = Duration::from_millis(100);

impl fmt::Debug for RemoteCopy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("RemoteCopy");
        shown
            .field("source", &self.source)
            .field("target", &self.target)
            .finish_non_exhaustive()
    }
}

impl RemoteCopy<'_> {
    /// Orders the copy and listens until it ends, `stop` resolves, or there has been no connection for too long. In the
    /// last case, a running copy continues. If `stop` resolves, [`after`](Self::after) decides. If one of the hosts is
    /// behind ssh, the copy always ends.
    ///
    /// # Errors
    /// A host cannot be reached or refuses, or the copy fails. Failed files are not an error: the summary counts them.
    pub async fn copy(
        &self,
        started: Instant,
        stop: impl Future<Output = ()>,
    ) -> Result<Transferred, PushError> {
        let run = CopyRun {
            started,
            standing: RunState {
                inspects: self.order.fetch.open.intent == Intent::Inspect,
                ..RunState::default()
            },
            key: None,
            id: None,
            told: false,
        };
        let mut sessions = CopySessions { of: self, run };
        let copied = self.source.run(&mut sessions, stop).await;
        match (copied, sessions.run.id) {
            (Err(PushError::Session(SessionError::Interrupted)), Some(id))
                if !self.ends_with_ssh() =>
            {
                Err(self.leave(id).await)
            }
            (copied, _) => copied,
        }
    }

    /// Returns whether the copy ends together with this side's ssh process, because ssh starts the receiver at one of
    /// the hosts.
    const fn ends_with_ssh(&self) -> bool {
        self.source.connector.remote.login.is_some() || self.target.remote.login.is_some()
    }

    /// Stops a copy that may be running, or lets it continue. Returns the error with which this interrupted command
    /// ends.
    async fn leave(&self, id: [u8; 16]) -> PushError {
        if self.after == OnInterrupt::Continue {
            return PushError::Pull(PullError::Left {
                id: Hex(&id).to_string(),
                remote: self.source.connector.remote.to_string(),
            });
        }
        match end_copy(&self.source.connector, id).await {
            Ok(()) => SessionError::Interrupted.into(),
            Err(error) => error.into(),
        }
    }

    /// Starts the copy, or joins it if it is already running.
    async fn order(
        &self,
        run: &mut CopyRun,
        hosts: &Hosts<'_>,
    ) -> Result<([u8; 16], ChannelDialer, ControlReader), PushError> {
        run.key = hosts.target.connector().pinned_key()?;
        if run.key.is_none() {
            // Connect to the target host first, because the user may have to confirm its key.
            let (channel, dialer) = hosts.target.connect_control().await?;
            run.key = Some(channel.peer());
            dialer.close().await;
        }
        let (channel, dialer) = hosts.source.connect_control().await?;
        let source = channel.peer();
        let order = ToSource::Copy(Box::new(CopyOrder {
            to: hosts.target.place(),
            ..self.order.clone()
        }));
        let listener = self.source.connector.listener;
        let asking = ask_daemon(
            channel,
            order,
            self.list.clone(),
            run.standing.patience,
            &*self.observer,
        );
        let RequestAnswer {
            reader,
            mut writer,
            answer,
            ..
        } = asking.await?;
        let id = match answer {
            ToSender::Copy(CopyState::Follows { id }) => {
                run.id = Some(id);
                if id != self.order.id {
                    self.check_that_it_runs(id, hosts).await?;
                }
                id
            }
            // The copy ended after this side had asked for its result.
            ToSender::Copy(CopyState::Ready) if self.must_not_begin_again(run) => {
                return Err(PullError::Control(zmove_transport::ControlError::Closed).into());
            }
            ToSender::Copy(CopyState::Ready) => {
                let token = self.grant(run, hosts, source).await?;
                let key = run.key.map_or([0; 32], |key| key.0);
                let begin = ToSource::Begin(Begin { grant: token, key });
                run.id = Some(self.order.id);
                writer
                    .send(&encode_message(&begin))
                    .await
                    .map_err(PullError::from)?;
                self.order.id
            }
            _ => {
                return Err(unexpected("the answer to an order"));
            }
        };
        run.standing.begin_session();
        listener.hear(&Notice::SessionBegins { transfer: None });
        if !std::mem::replace(&mut run.told, true) && !self.ends_with_ssh() {
            listener.hear(&Notice::CopyRuns {
                id: &Hex(&id).to_string(),
                remote: self.source.connector.remote,
            });
        }
        Ok((id, dialer, reader))
    }

    /// Returns whether the copy may have begun and must not be repeated. A lost connection to this side does not end
    /// the copy, so this side can still follow it or get its result.
    fn must_not_begin_again(&self, run: &CopyRun) -> bool {
        run.id.is_some() && !self.order.fetch.open.can_be_repeated()
    }

    /// Returns the report of the copy if it has ended since the last session and must not be repeated.
    async fn ended_report(
        &self,
        run: &CopyRun,
    ) -> Result<Option<([u8; 16], SenderReport)>, PushError> {
        let Some(id) = run.id.filter(|_| self.must_not_begin_again(run)) else {
            return Ok(None);
        };
        let asked = copy_result(
            &self.source.connector,
            id,
            OnInterrupt::Continue,
            &*self.observer,
        );
        let result = asked.await.map_err(|error| match error {
            PushError::Pull(PullError::Refused(refusal)) if refusal.code == RefusalCode::Target => {
                let text = "the source host was interrupted; the copy is not repeated, because a file of which only a \
                            part was replaced may be newer than its source (--inplace with --update)";
                PullError::Ended(Refusal::new(RefusalCode::Broken, text)).into()
            }
            error => error,
        });
        let (account, broken) = match result?.1 {
            CopyResult::Runs => return Ok(None),
            CopyResult::Ended(ended) => match ended.ended {
                Ok(account) => (Some(account), None),
                Err(refusal) => (None, Some(refusal)),
            },
            CopyResult::Received(_) => return Err(unexpected("the answer to a question")),
        };
        let report = SenderReport {
            account,
            broken,
            ..SenderReport::default()
        };
        Ok(Some((id, report)))
    }

    /// Checks that the copy is still running if this command did not start it. Otherwise, the source host could present
    /// the receipt of a copy that ended long ago.
    async fn check_that_it_runs(&self, id: [u8; 16], hosts: &Hosts<'_>) -> Result<(), PushError> {
        let target = hosts.target.connector();
        let (_, result) = copy_result(&target, id, OnInterrupt::Continue, &*self.observer).await?;
        match result {
            CopyResult::Runs => Ok(()),
            // The copy may have ended just now. Report a lost connection, so that the caller orders the copy again.
            _ => Err(PullError::Control(zmove_transport::ControlError::Closed).into()),
        }
    }

    /// Obtains a grant from the target host that allows the host with the key `source` to send this copy.
    async fn grant(
        &self,
        run: &mut CopyRun,
        hosts: &Hosts<'_>,
        source: Fingerprint,
    ) -> Result<GrantToken, PushError> {
        let (channel, dialer) = hosts.target.connect_control().await?;
        run.key = Some(channel.peer());
        let CopyOrder { id, fetch, .. } = &self.order;
        // The target host ignores the sources of a list, which may be long, so they are omitted.
        let sources: Vec<SourcePath> = if fetch.list.is_some() {
            Vec::new()
        } else {
            fetch.sources.clone()
        };
        let order = GrantOrder {
            id: *id,
            source: source.0,
            open: fetch.open.clone(),
            sources,
            bytes_max: self.bytes_max,
            entries_max: self.entries_max,
        };
        let order = ToSource::Grant(Box::new(order));
        let asking = ask_daemon(channel, order, None, run.standing.patience, &*self.observer);
        let asked = tokio::time::timeout(GRANT_TIMEOUT.max(run.standing.patience), asking).await;
        let answer = asked
            .unwrap_or(Err(PullError::Silent))
            .map_err(target_error)?
            .answer;
        dialer.close().await;
        match answer {
            ToSender::Granted(granted) => Ok(granted),
            _ => Err(unexpected("the answer to an order")),
        }
    }

    /// Listens to the source host until the end of the copy.
    async fn listen(
        &self,
        run: &mut CopyRun,
        mut reader: ControlReader,
    ) -> Result<SenderReport, PullError> {
        let (more, _never) = mpsc::unbounded_channel();
        let relayed = RelayedEvents::new(
            Arc::clone(&self.observer),
            None,
            more,
            run.started.elapsed(),
        );
        let mut first = None;
        let ended = self.hear(&relayed, &mut reader, &mut first).await;
        let (_, heard) = relayed.end(None);
        let answered = first.map(|first: Instant| first.elapsed());
        run.standing.note_answered(answered.unwrap_or_default());
        // The source host itself checks that its sessions with the target host make progress.
        run.standing.note_found(heard.max_progress);
        ended.map(|()| heard)
    }

    /// Listens to the source host, and records when its first message arrives.
    async fn hear(
        &self,
        relayed: &RelayedEvents,
        reader: &mut ControlReader,
        first: &mut Option<Instant>,
    ) -> Result<(), PullError> {
        let mut restarts = 0;
        while let Some(bytes) = reader.receive().await? {
            first.get_or_insert_with(Instant::now);
            let ToReceiver::Relay(relay) = decode_message(&bytes)? else {
                return Err(WireError::OutOfOrder {
                    what: "an unexpected message on the session channel",
                }
                .into());
            };
            relayed.take(relay);
            if std::mem::replace(&mut restarts, relayed.restarts()) < restarts {
                self.source
                    .connector
                    .listener
                    .hear(&Notice::SessionBegins { transfer: None });
            }
        }
        Ok(())
    }

    fn finish(
        &self,
        run: &CopyRun,
        id: [u8; 16],
        heard: SenderReport,
    ) -> Result<Transferred, PullError> {
        let SenderReport {
            account,
            broken,
            restarts,
            first_byte,
            ..
        } = heard;
        let Some(account) = account else {
            return Err(match broken {
                // The source host may come back and resume the copy.
                Some(refusal)
                    if refusal.code == RefusalCode::Stopping && !self.must_not_begin_again(run) =>
                {
                    PullError::Refused(refusal)
                }
                Some(refusal) => PullError::Ended(refusal),
                None => zmove_transport::ControlError::Closed.into(),
            });
        };
        let moves = self.order.fetch.open.intent == Intent::Write;
        let told = Summary::from(account);
        let receipt = match &told.receipt {
            Some(signed) => {
                let target = self.order.fetch.open.target.as_slice();
                Some(verified_receipt(signed, id, target, run.key).ok_or(PullError::Receipt)?)
            }
            None if moves => return Err(PullError::Receipt),
            None => None,
        };
        let elapsed = run.started.elapsed();
        let summary = Summary {
            counters: Counters {
                reconnects: restarts,
                ..told.counters
            },
            elapsed,
            first_byte,
            ..told
        };
        Ok(Transferred {
            receipt,
            ..Transferred::from(summary)
        })
    }
}

/// Converts an error of the target host, so that it is not reported as an error of the source host. If the target host
/// is busy, the request is retried.
fn target_error(error: PullError) -> PushError {
    match error {
        PullError::Refused(refusal) if refusal.is_busy() => SessionError::Refused(refusal).into(),
        PullError::Refused(Refusal { code, text }) => PullError::Ended(Refusal {
            code,
            text: format!("receiver: {text}"),
        })
        .into(),
        error => error.into(),
    }
}

/// Sends a message to a daemon and waits for the answer.
async fn ask_daemon(
    channel: Channel,
    wanted: ToSource,
    list: Option<Arc<[u8]>>,
    patience: Duration,
    observer: &dyn Observer,
) -> Result<RequestAnswer, PullError> {
    let transfer = fresh_transfer().map_err(|source| PullError::Control(source.into()))?;
    let (reader, writer) = control_pair(channel);
    ask(
        reader,
        writer,
        Greeting::new(Role::Fetch, transfer),
        wanted,
        list,
        patience,
        observer,
    )
    .await
}

/// Returns the receipt if `key` has signed it for the copy `id` to this target. Comparing only the id is not enough,
/// because the source host could present another running copy of this client as the ordered one.
fn verified_receipt(
    signed: &SignedReceipt,
    id: [u8; 16],
    target: &[u8],
    key: Option<Fingerprint>,
) -> Option<Receipt> {
    let (signer, receipt) = read_receipt(signed)?;
    (Some(signer) == key && receipt.id == id && receipt.target == target).then_some(receipt)
}

/// Returns the signer and contents of a receipt, or `None` if the signature is invalid.
#[must_use]
pub fn read_receipt(
    SignedReceipt {
        receipt,
        certificate,
        signature,
    }: &SignedReceipt,
) -> Option<(Fingerprint, Receipt)> {
    let signed = Signed {
        certificate: certificate.clone(),
        signature: signature.clone(),
    };
    let signer = signed.signer_of(receipt)?;
    Some((signer, decode_message(receipt).ok()?))
}

/// Action for a copy that may still be running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnInterrupt {
    /// The copy continues if it is running.
    Continue,
    /// The copy is stopped.
    Stop,
}

/// Stops a copy at the source host and waits until it has ended. Without the wait, an equal order would join the old
/// copy and report that copy's end as its own.
///
/// # Errors
/// The copy may still be running.
pub async fn end_copy(source: &Connector<'_>, id: [u8; 16]) -> Result<(), PullError> {
    let why = match tokio::time::timeout(END_TIMEOUT, end(source, id)).await {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) => Causes(&error).to_string(),
        Err(_elapsed) => format!("it did not end within {} s", END_TIMEOUT.as_secs()),
    };
    Err(PullError::NotEnded {
        id: Hex(&id).to_string(),
        remote: source.remote.to_string(),
        why,
    })
}

async fn end(source: &Connector<'_>, id: [u8; 16]) -> Result<(), PushError> {
    let since = Instant::now();
    loop {
        match copy_result(source, id, OnInterrupt::Stop, &NoObserver).await {
            Ok((_, CopyResult::Runs)) => {}
            Ok(_) => return Ok(()),
            Err(PushError::Pull(PullError::Refused(refusal)))
                if refusal.code == RefusalCode::Target =>
            {
                if since.elapsed() >= BEGIN_TIMEOUT {
                    return Ok(());
                }
            }
            Err(error) => return Err(error),
        }
        tokio::time::sleep(END_INTERVAL).await;
    }
}

/// Queries the result of a copy. Returns it with the key of the host that answered.
///
/// # Errors
/// The host cannot be reached or does not know the copy.
pub async fn copy_result(
    connector: &Connector<'_>,
    id: [u8; 16],
    after: OnInterrupt,
    observer: &dyn Observer,
) -> Result<(Fingerprint, CopyResult), PushError> {
    let (channel, dialer) = connector.connect_control().await?;
    let key = channel.peer();
    let wanted = ToSource::Result {
        id,
        stop: after == OnInterrupt::Stop,
    };
    let answer = ask_daemon(channel, wanted, None, Duration::ZERO, observer)
        .await?
        .answer;
    dialer.close().await;
    match answer {
        ToSender::Result(result) => Ok((key, result)),
        _ => Err(unexpected("the answer to a question")),
    }
}

/// Returns the error for a host that sends an unexpected answer.
pub(crate) fn unexpected(what: &'static str) -> PushError {
    PullError::from(WireError::OutOfOrder { what }).into()
}

/// The sessions of a copy.
struct CopySessions<'a, 'b> {
    of: &'a RemoteCopy<'b>,
    run: CopyRun,
}

impl Sessions for CopySessions<'_, '_> {
    async fn session<S: Future<Output = ()>>(
        &mut self,
        until: Option<tokio::time::Instant>,
        mut stop: Pin<&mut S>,
    ) -> Result<Transferred, PushError> {
        let Self { of, run } = self;
        let ended = unless_interrupted(stop.as_mut(), Box::pin(of.ended_report(run)));
        if let Some((id, report)) = in_time(until, PullError::Silent, ended).await? {
            return Ok(of.finish(run, id, report)?);
        }
        let begun = Box::pin(async {
            let hosts = Hosts::begin(of.source.connector, of.target).await?;
            let ordered = of.order(run, &hosts).await?;
            Ok::<_, PushError>((hosts, ordered))
        });
        let begun = unless_interrupted(stop.as_mut(), begun);
        let (hosts, (id, dialer, reader)) = in_time(until, PullError::Silent, begun).await?;
        let heard = unless_interrupted(stop, of.listen(run, reader)).await;
        dialer.close().await;
        hosts.end().await;
        Ok(of.finish(run, id, heard?)?)
    }

    fn standing(&mut self) -> &mut RunState {
        &mut self.run.standing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zmove_transport::Identity;

    #[test]
    fn a_receipt_is_for_one_copy_and_one_target_and_of_one_key() {
        let identity = Identity::for_once().unwrap();
        let receipt = Receipt {
            id: [1; 16],
            client: [2; 32],
            source: [3; 32],
            target: b"asked".to_vec(),
            files: 1,
            bytes: 1,
            faults: 0,
            ended: 1,
        };
        let bytes = encode_message(&receipt)[4..].to_vec();
        let Signed {
            certificate,
            signature,
        } = identity.sign(&bytes).unwrap();
        let signed = SignedReceipt {
            receipt: bytes,
            certificate,
            signature,
        };
        let key = Some(identity.fingerprint());
        assert_eq!(
            verified_receipt(&signed, [1; 16], b"asked", key),
            Some(receipt)
        );
        assert_eq!(verified_receipt(&signed, [9; 16], b"asked", key), None);
        assert_eq!(verified_receipt(&signed, [1; 16], b"other", key), None);
        assert_eq!(
            verified_receipt(&signed, [1; 16], b"asked", Some(Fingerprint([9; 32]))),
            None
        );
        assert_eq!(verified_receipt(&signed, [1; 16], b"asked", None), None);
        let forged = SignedReceipt {
            signature: vec![0; 8],
            ..signed
        };
        assert_eq!(verified_receipt(&forged, [1; 16], b"asked", key), None);
    }
}
