//! A session that sends. The receiver has dialed this host and requested files. From then on, this side acts like any
//! other sender. Its reports go to the receiver instead of to a local user.
//!
//! **Invariant:** only files beneath the roots that the key may read are read. Every message of the receiver is checked
//! against limits before it is decoded, and is charged to the receiver's key while it is kept.

use std::future::Future;
use std::io::Cursor;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use thiserror::Error;
use tokio::sync::mpsc;
use zmove_engine::{Causes, PushError};
use zmove_receiver::{
    Charge, Limits, Portion, Quota, ReceiverConfig, RunLeases, TransferMeter, charge_rules,
};
use zmove_scan::{FileSystems, PathList, ScanConfig, Selection, Separator};
use zmove_sender::{
    FallbackAttributes, OwnerMapping, PushJob, Removals, SenderConfig, SessionError, Summary,
};
use zmove_transport::{
    Claim, ControlError, ControlReader, ControlWriter, Fingerprint, LaneError, LaneSink, SharedRate,
};
use zmove_types::{Accounts, NoAccounts, RateLimit, TransferId};
use zmove_wire::limits::{
    FETCH_BYTES_MAX, FETCH_LIST_BYTES_MAX, FETCH_LIST_PART_BYTES_MAX, within,
};
use zmove_wire::{
    Cipher, Fetch, HostAddress, Open, OwnerOrder, Refusal, RefusalCode, SourcePath, ToSender,
    ToSource, WireError, decode_message_within, encode_message,
};

use crate::access::authorizer::{Authorized, Authorizer};
use crate::access::refusals::denied;
use crate::copies::Copies;
use crate::sender_relay::{FLUSH_INTERVAL, SenderRelay};
use crate::sources::{FoundSources, ReadAccess};
use crate::transfers::StopReason;

mod prepared;

/// Both directions of a peer's control connection.
pub(crate) struct PeerControl {
    pub(crate) reader: ControlReader,
    pub(crate) writer: ControlWriter,
}

/// A transfer that is about to be sent. Its greeting has been read.
pub(crate) struct SendingSession {
    pub(crate) transfer: TransferId,
    pub(crate) cipher: Cipher,
    pub(crate) control: PeerControl,
    pub(crate) lanes: mpsc::Receiver<Result<Box<dyn LaneSink>, LaneError>>,
    /// The peer's proven key and certificates, and the rights that follow from them.
    pub(crate) claim: Claim,
    pub(crate) authorized: Authorized,
    pub(crate) authorizer: Arc<Authorizer>,
    /// The state of copies. `None` if this daemon makes no copies.
    pub(crate) copies: Option<Arc<Copies>>,
    pub(crate) run_leases: RunLeases,
    /// Whether the transfer was queued. Lanes that arrived during the wait have been closed.
    pub(crate) has_waited: bool,
    pub(crate) share: KeyShare,
    pub(crate) meter: Arc<TransferMeter>,
}

/// The resources of a key and of the daemon that a session may use.
#[derive(Clone)]
pub(crate) struct KeyShare {
    pub(crate) quota: Quota,
    pub(crate) portion: Portion,
    /// The rate limit of the key, shared by all of its transfers.
    pub(crate) rate: Option<SharedRate>,
    /// Bytes charged for the transfer's plan.
    pub(crate) plan_bytes: usize,
    /// The settings of this host for receiving. Sending uses the storage engine and the user accounts in these settings
    /// too.
    pub(crate) config: ReceiverConfig,
}

/// The reason why a sending session ended before its transfer was complete.
#[derive(Debug, Error)]
pub enum SendingError {
    /// The transfer was refused, and the reason was sent to the peer.
    #[error("refused: {}", .0.text)]
    Refused(Refusal),
    /// The peer violated the protocol or disconnected before it had sent its request.
    #[error("{0}")]
    Control(#[from] ControlError),
    /// The peer opened a connection and sent nothing.
    #[error("the receiver did not send its request in time")]
    Silent,
    /// The operator of this host has ended the transfer. The reason is sent to the peer.
    #[error("{}", .0.text)]
    CutOff(Refusal),
    /// The peer has started a newer transfer of the same run.
    #[error("the receiver started again over other connections")]
    Superseded,
    /// The peer does not read its messages, or its key has no memory left for them.
    #[error("the receiver does not read its messages (limits.memory_per_identity)")]
    Unread,
    /// The sending role failed.
    #[error("{0}")]
    Session(#[from] SessionError),
    /// A copy to another host failed.
    #[error("{}", Causes(.0))]
    Copy(#[source] PushError),
}

impl From<WireError> for SendingError {
    fn from(error: WireError) -> Self {
        Self::Control(error.into())
    }
}

impl SendingError {
    /// Returns the kind of error in one word, for metrics.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Refused(_) => "refused",
            Self::Control(ControlError::Wire(_)) => "protocol",
            Self::Control(_) => "control",
            Self::Silent => "silent",
            Self::CutOff(_) => "cut_off",
            Self::Superseded => "superseded",
            Self::Unread => "limit",
            Self::Session(SessionError::Interrupted) => "stopping",
            Self::Session(SessionError::PeerMisbehaved(_)) => "protocol",
            Self::Session(SessionError::Lane(_)) => "lane",
            Self::Session(_) | Self::Copy(_) => "session",
        }
    }
}

/// The request of the receiver, with the memory reservation for it.
pub(crate) struct Order {
    pub(crate) fetch: Fetch,
    pub(crate) list: Option<Arc<[u8]>>,
    held: Charge,
}

/// The result of a session.
pub(crate) enum Sent {
    /// Files were sent to the peer.
    Files(Box<Summary>),
    /// Files were sent to another host.
    Copied(HostAddress, Box<Summary>),
    /// A grant was issued to the peer. With it, the holder of the key `source` may send to `target`.
    Granted {
        source: Fingerprint,
        target: Vec<u8>,
    },
    /// The peer queried a copy or listened to one.
    Answered,
}

/// Maximum time for a peer to send each part of its request.
const ORDER_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum time for a refused peer to close its end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Memory that one string of an order takes in addition to its bytes, in bytes.
const STRING_BYTES: usize = 136;
/// Maximum number of large files that are open at a time. For each file, five descriptors are charged.
const OPEN_FILES: usize = 16;
/// Minimum number of scan threads and of reader threads, regardless of the key's other transfers.
const THREADS_MIN: usize = 2;
/// Maximum number of bytes that are charged to a key's memory for the plan of one transfer. The charge also never
/// exceeds 1/`PLAN_SHARE` of the key's memory limit.
const PLAN_BYTES_MAX: u64 = 64 << 20;
const PLAN_SHARE: u64 = 16;
/// Maximum length of the sources in the log, in bytes. The first source is always shown completely.
const SHOWN_BYTES_MAX: usize = 1024;
/// Minimum interval between progress reports, in milliseconds.
const SAMPLE_MILLIS_MIN: u32 = 50;

/// Returns the number of bytes to charge for the plan of one transfer, given the key's limits.
pub(crate) fn plan_bytes(limits: &Limits) -> usize {
    usize::try_from((limits.memory_per_identity.0 / PLAN_SHARE).min(PLAN_BYTES_MAX))
        .unwrap_or(usize::MAX)
}

/// Sends files to the peer.
pub(crate) async fn send_files(
    mut session: SendingSession,
    order: Order,
    stop: impl Future<Output = StopReason>,
) -> Result<Sent, SendingError> {
    tokio::pin!(stop);
    let access = session.authorized.reads.clone();
    let access = access.ok_or_else(|| may_not_read(session.claim.key, &session.authorized));
    let prepared = session.prepare(order, access, Target::Peer, stop.as_mut());
    match prepared.await? {
        Ok(prepared) => Box::pin(prepared.run(session, stop))
            .await
            .map(|summary| Sent::Files(Box::new(summary))),
        Err(refusal) => Err(refuse(session.control, refusal).await),
    }
}

impl SendingSession {
    /// Prepares the transfer that the peer has ordered, if it is permitted. Stops preparing if the peer disconnects or
    /// the daemon stops. The peer must not send anything until it has received an answer, so any message during the
    /// preparation is a protocol violation.
    pub(crate) async fn prepare(
        &mut self,
        order: Order,
        access: Result<ReadAccess, Refusal>,
        target: Target,
        stop: impl Future<Output = StopReason>,
    ) -> Result<Result<Prepared, Refusal>, SendingError> {
        let access = match access {
            Ok(access) => access,
            Err(refusal) => return Ok(Err(refusal)),
        };
        tokio::select! {
            prepared = prepare(self.share.clone(), order, access, target) => Ok(prepared),
            said = self.control.reader.receive_within(FETCH_BYTES_MAX) => Err(match said {
                Ok(Some(_)) => WireError::OutOfOrder { what: "a second order" }.into(),
                Ok(None) => ControlError::Closed.into(),
                Err(error) => error.into(),
            }),
            cut = stop => Ok(Err(cut.refusal())),
        }
    }
}

/// Joins the sources into one string for the log. A long list is truncated.
pub(crate) fn shown(fetch: &Fetch) -> Vec<u8> {
    let mut shown = Vec::new();
    for SourcePath(source) in &fetch.sources {
        if shown.len() + source.len() > SHOWN_BYTES_MAX && !shown.is_empty() {
            shown.extend(" ...".as_bytes());
            break;
        }
        let separator: &[u8] = if shown.is_empty() { b"" } else { b" " };
        shown.extend([separator, source].concat());
    }
    shown
}

pub(crate) fn may_not_read(key: Fingerprint, authorized: &Authorized) -> Refusal {
    let name = argument_of(&authorized.name);
    let text = format!(
        "this key may not read here. On that host, run: zmove allow {key} --name {name} --read-root DIR"
    );
    denied(text)
}

/// Returns the name of a key for use as a command argument in a message. Returns the placeholder `NAME` if the name
/// contains whitespace.
pub(crate) fn argument_of(name: &str) -> &str {
    if name.contains(char::is_whitespace) {
        "NAME"
    } else {
        name
    }
}

pub(crate) async fn refuse(control: PeerControl, refusal: Refusal) -> SendingError {
    let words = encode_message(&ToSender::Refused(refusal.clone()));
    let _peer_gone = send_last_message(control, &words, CLOSE_TIMEOUT).await;
    SendingError::Refused(refusal)
}

/// Sends a peer the reason why its message could not be decoded.
pub(crate) async fn refuse_malformed(control: PeerControl, error: SendingError) -> SendingError {
    let SendingError::Control(ControlError::Wire(error)) = error else {
        return error;
    };
    refuse(
        control,
        Refusal::new(RefusalCode::Protocol, error.to_string()),
    )
    .await
}

/// Refuses a peer whose transfer was ended by the daemon or its operator before it began.
pub(crate) async fn cut_off(control: PeerControl, cut: StopReason) -> SendingError {
    let refusal = cut.refusal();
    refuse(control, refusal.clone()).await;
    SendingError::CutOff(refusal)
}

/// Sends the last message on a connection and then reads until the peer closes it, because a close with unread data
/// could destroy the message in transit. Takes no longer than `patience`.
pub(crate) async fn send_last_message(
    PeerControl {
        mut reader,
        mut writer,
    }: PeerControl,
    words: &[u8],
    patience: Duration,
) -> Result<(), ControlError> {
    let until = tokio::time::Instant::now() + patience;
    let said = async {
        writer.send(words).await?;
        writer.finish().await
    };
    let said = tokio::time::timeout_at(until, said).await;
    said.unwrap_or(Err(ControlError::Unread))?;
    let drained = async { while let Ok(Some(_)) = reader.receive_within(FETCH_BYTES_MAX).await {} };
    let _in_time = tokio::time::timeout_at(until, drained).await;
    Ok(())
}

/// Reads the rest of the receiver's request.
pub(crate) async fn order(
    reader: &mut ControlReader,
    fetch: Fetch,
    mut held: Charge,
) -> Result<Order, SendingError> {
    charge_rules(&fetch.rules, &mut held)?;
    let Some(announced) = fetch.list else {
        return Ok(Order {
            fetch,
            list: None,
            held,
        });
    };
    within("list of paths", announced.bytes, FETCH_LIST_BYTES_MAX)?;
    let length = usize::try_from(announced.bytes).unwrap_or(usize::MAX);
    let mut list = Vec::new();
    while list.len() < length {
        let ToSource::Listed { bytes } = next(reader, &mut held).await? else {
            return Err(WireError::OutOfOrder {
                what: "a second order",
            }
            .into());
        };
        within("part of a list", bytes.len(), FETCH_LIST_PART_BYTES_MAX)?;
        if bytes.is_empty() || list.len() + bytes.len() > length {
            return Err(WireError::OutOfOrder {
                what: "a part of a list that was not announced",
            }
            .into());
        }
        list.extend(bytes);
    }
    Ok(Order {
        fetch,
        list: Some(list.into()),
        held,
    })
}

/// Reads the next message. Charges twice the length of the message, because decoding copies the strings in it.
pub(crate) async fn next(
    reader: &mut ControlReader,
    held: &mut Charge,
) -> Result<ToSource, SendingError> {
    let received =
        tokio::time::timeout(ORDER_TIMEOUT, reader.receive_within(FETCH_BYTES_MAX)).await;
    let bytes = received
        .map_err(|_| SendingError::Silent)??
        .ok_or(ControlError::Closed)?;
    held.grow(2 * bytes.len())?;
    Ok(decode_message_within(&bytes, |strings| {
        held.grow(STRING_BYTES * strings)
    })?)
}

/// A transfer that is ready to begin.
pub(crate) struct Prepared {
    pub(crate) job: PushJob,
    pub(crate) config: SenderConfig,
    pub(crate) fetch: Fetch,
    pub(crate) list: Option<Arc<[u8]>>,
    pub(crate) missing: Vec<String>,
    /// Reservations for the transfer, held until it ends.
    pub(crate) held: Vec<Charge>,
}

/// The destination of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// The target is on the peer. Only the peer knows its path.
    Peer,
    /// The target is on another host. Its path is part of the order.
    OtherHost,
}

async fn prepare(
    share: KeyShare,
    order: Order,
    access: ReadAccess,
    target: Target,
) -> Result<Prepared, Refusal> {
    let Order {
        mut fetch,
        list,
        mut held,
    } = order;
    held.grow(share.plan_bytes)
        .map_err(|error| Refusal::new(RefusalCode::Full, error.to_string()))?;
    let protocol = |error: WireError| Refusal::new(RefusalCode::Protocol, error.to_string());
    fetch.open.grant = None;
    if !fetch.open.intent.is_of_transfer() {
        return Err(protocol(WireError::OutOfOrder {
            what: "a probe or a cleaning",
        }));
    }
    if list.is_some() && fetch.sources.len() != 1 {
        return Err(protocol(WireError::OutOfOrder {
            what: "a list of more than one source",
        }));
    }
    if list.is_some() && !fetch.sources[0].0.is_empty() && !fetch.sources[0].0.ends_with(b"/") {
        // If the order has a list of paths, the paths are relative to the source directory, so the contents of that
        // directory are requested.
        fetch.sources[0].0.push(b'/');
    }
    if target == Target::Peer {
        fetch.open.target = Vec::new();
    }
    let stopping = StopOnDrop::default();
    let stopped = stopping.flag();
    let prepared = tokio::task::spawn_blocking(move || {
        let PreparedJob {
            job,
            missing,
            held: of_sources,
        } = job(&fetch, list.as_ref(), &access, &share.quota, &stopped)?;
        let mut held = vec![held];
        held.extend(of_sources);
        let config = sender_config(&fetch, &share, &mut held)?;
        Ok(Prepared {
            job,
            config,
            fetch,
            list,
            missing,
            held,
        })
    });
    prepared.await.unwrap_or_else(|_panic| {
        Err(Refusal::new(
            RefusalCode::Failed,
            "a thread of the sender panicked; see its log",
        ))
    })
}

/// Sets a flag when dropped, to stop a preparation that is no longer needed.
#[derive(Default)]
pub(crate) struct StopOnDrop(Arc<AtomicBool>);

impl StopOnDrop {
    /// Returns the flag that is set when this value is dropped.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The sources and the job of one session.
pub(crate) struct PreparedJob {
    pub(crate) job: PushJob,
    /// The sources that cannot be opened.
    pub(crate) missing: Vec<String>,
    held: Vec<Charge>,
}

/// Builds the job of one session. May block on file I/O. Stops with an error when `stopping` is set.
pub(crate) fn job(
    fetch: &Fetch,
    list: Option<&Arc<[u8]>>,
    access: &ReadAccess,
    quota: &Quota,
    stopping: &AtomicBool,
) -> Result<PreparedJob, Refusal> {
    let FoundSources {
        roots,
        shape,
        missing,
        held,
    } = FoundSources::find(&fetch.sources, access, quota, stopping)?;
    let path_list = list.zip(fetch.list).map(|(bytes, order)| {
        let separator = if order.nul {
            Separator::Nul
        } else {
            Separator::Newline
        };
        let bytes = Cursor::new(Arc::clone(bytes));
        PathList::new(
            roots[0].clone(),
            bytes,
            "the list of paths".into(),
            separator,
        )
    });
    let open = Open {
        shape,
        ..fetch.open.clone()
    };
    let mirror = fetch
        .removals
        .filter(|_| list.is_none())
        .map(|order| Removals {
            order,
            ..Removals::default()
        });
    let sources_missing = missing.len() as u64;
    let job = PushJob {
        sources: roots,
        open,
        mirror,
        sources_missing,
        list: path_list,
    };
    Ok(PreparedJob { job, missing, held })
}

/// Builds the settings of the sender. Adds the reservations for its open files and threads to `held`.
fn sender_config(
    fetch: &Fetch,
    KeyShare {
        quota,
        config,
        portion,
        rate,
        ..
    }: &KeyShare,
    held: &mut Vec<Charge>,
) -> Result<SenderConfig, Refusal> {
    let usual = SenderConfig::default();
    let full = |what: &str| {
        Refusal::new(
            RefusalCode::Full,
            format!(
                "the transfers of this key have reached the maximum number of {what}; try again later"
            ),
        )
    };
    let files: Vec<_> = (0..OPEN_FILES)
        .map_while(|_| quota.charge_file().ok())
        .collect();
    if files.len() < OPEN_FILES {
        return Err(full("open files (limits.files_per_identity)"));
    }
    let wanted = usual.scan.threads + usual.readers_max;
    let threads: Vec<_> = (0..wanted).map_while(|_| quota.charge_thread()).collect();
    let scan_threads = (threads.len() / 2).clamp(THREADS_MIN, usual.scan.threads);
    let readers_max = threads
        .len()
        .saturating_sub(scan_threads)
        .clamp(THREADS_MIN, usual.readers_max);
    let file_systems = if fetch.one_file_system {
        FileSystems::OfRoot
    } else {
        FileSystems::All
    };
    let selection = selection(fetch)?.map(Arc::new);
    let sample = fetch
        .sample_millis
        .map(|millis| Duration::from_millis(millis.max(SAMPLE_MILLIS_MIN).into()));
    let sender = SenderConfig {
        readers: usual.readers.min(readers_max),
        readers_max,
        buffers_max: usual.buffers_max.min(portion.buffers),
        scan: ScanConfig {
            threads: scan_threads,
            selection,
            file_systems,
            ..usual.scan.clone()
        },
        owners: owners(&fetch.owners, &config.accounts),
        zeros: fetch.zeros,
        instead: FallbackAttributes {
            mtime: fetch.mtime,
            umask: fetch.umask.map(|umask| umask & 0o777),
        },
        sample_interval: sample,
        file_io: quota.file_io(&config.file_io),
        direct: config.direct,
        storage: config.storage.clone(),
        rate_max: fetch.rate_max.map(RateLimit::nearest),
        rate_shared: rate.clone(),
        ..usual
    };
    held.extend(files);
    held.extend(threads.into_iter().flatten());
    Ok(sender)
}

fn selection(fetch: &Fetch) -> Result<Option<Selection>, Refusal> {
    let selection = zmove_receiver::selection(&fetch.rules, fetch.sizes.0..=fetch.sizes.1);
    selection.map_err(|error| {
        Refusal::new(
            RefusalCode::Protocol,
            format!("the patterns of the selection: {error}"),
        )
    })
}

fn owners(order: &OwnerOrder, accounts: &Arc<dyn Accounts>) -> OwnerMapping {
    OwnerMapping {
        accounts: if order.numeric {
            Arc::new(NoAccounts)
        } else {
            Arc::clone(accounts)
        },
        users: order.users.clone(),
        groups: order.groups.clone(),
    }
}

pub(crate) async fn flush_periodically(sender_relay: Arc<SenderRelay>) {
    let mut ticks = tokio::time::interval(FLUSH_INTERVAL);
    loop {
        ticks.tick().await;
        sender_relay.flush();
    }
}
