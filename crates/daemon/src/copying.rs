//! The client's requests to the two daemons of a copy: the order to the sending daemon, the order for a grant to the
//! receiving daemon, and queries to both.
//!
//! The sending daemon runs the copy in the same way as a push by a user of its host. The destination must be allowed
//! for the client's key (`zmove allow --to`) and must have the host key that the client has pinned. The copy continues
//! when the client disconnects.
//!
//! **Invariant:** the daemon connects only to destinations that the client's own key may use, and reads only files that
//! this key may read. Both are checked again for each session.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedReceiver;
use zmove_engine::{
    BoxError, Causes, ConnectError, Connector, DialSettings, JobFuture, Listener, Notice,
    PathCheck, PushError, Remote, RemotePush, RetryPolicy, StartedPush, Timeout,
};
use zmove_receiver::{Quota, unless_stopped};
use zmove_sender::{PeerQuota, PushJob, RelayMessage, SessionError, Summary};
use zmove_transport::{Claim, DialError, DialOptions, Fingerprint, Identity, blocking};
use zmove_types::RateLimit;
use zmove_wire::{
    Begin, Cipher, CopyOrder, CopyState, EndedCopy, Fetch, GrantOrder, HostAddress, Intent,
    Refusal, RefusalCode, Relay, ToReceiver, ToSender, ToSource, TransferAccount, WireError,
    encode_message,
};

use crate::access::authorizer::{Authorized, Authorizer, Destinations};
use crate::access::refusals::denied;
use crate::copies::{Copies, RunningCopy};
use crate::sender_relay::{KeyQuota, Listeners, SenderRelay};
use crate::sending::{
    Order, PeerControl, Prepared, SendingError, SendingSession, Sent, StopOnDrop, Target,
    argument_of, cut_off, flush_periodically, job, may_not_read, next, refuse, refuse_malformed,
    send_last_message,
};
use crate::sources::ReadAccess;
use crate::transfers::StopReason;

/// Maximum time for a client to provide the grant.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(120);
/// Maximum time for a client to receive the result.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time for which this daemon keeps redialing the destination of a copy.
const RETRY_TIMEOUT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Makes a copy to another host. If the client has already ordered the same copy, attaches the client to that copy
/// instead.
pub(crate) async fn copy(
    mut session: SendingSession,
    copy: CopyOrder,
    order: Order,
    stop: impl Future<Output = StopReason>,
) -> Result<Sent, SendingError> {
    let Some(copies) = session.copies.clone() else {
        return Err(refuse(session.control, copies_disabled()).await);
    };
    let client = session.claim.key;
    tokio::pin!(stop);
    if let Some(running) = copies.running(client, &copy, order.list.as_ref()) {
        // Only this client is disconnected. The copy continues.
        let listened = unless_stopped(stop, listen(session.control, &running)).await;
        return listened.unwrap_or_else(|cut| Err(SendingError::CutOff(cut.refusal())));
    }
    if let Some(ended) = copies.ended(client, copy.id) {
        return send_ended(session.control, copy.id, ended).await;
    }
    let list = order.list.clone();
    let access = rights(&session.authorized, client, &copy.to);
    let prepared = session.prepare(order, access, Target::OtherHost, stop.as_mut());
    let prepared = match prepared.await? {
        Ok(prepared) => prepared,
        Err(refusal) => return Err(refuse(session.control, refusal).await),
    };
    let begin = match unless_stopped(stop.as_mut(), begin(&mut session)).await {
        Ok(Ok(begin)) => begin,
        Ok(Err(error)) => return Err(refuse_malformed(session.control, error).await),
        Err(cut) => return Err(cut_off(session.control, cut).await),
    };
    let (sender_relay, words) = SenderRelay::new(
        session.share.quota.clone(),
        Listeners::Optional,
        Arc::clone(&session.meter),
    );
    let Some((running, entered)) = copies.enter(client, &copy, list, Arc::clone(&sender_relay))
    else {
        return Err(refuse(session.control, already_running()).await);
    };
    let mut listening = tokio::spawn(forward_messages(session.control, words));
    let telling = tokio::spawn(flush_periodically(Arc::clone(&sender_relay)));
    let checked = AuthorizationCheck {
        claim: session.claim,
        authorizer: session.authorizer,
        to: copy.to.clone(),
        quota: session.share.quota,
    };
    let mut cut_off = None;
    let stop = async {
        tokio::select! {
            cut = stop => cut_off = Some(cut),
            () = running.stop.notified() => {}
        }
    };
    let ended = Box::pin(push(
        &copies,
        &copy,
        begin,
        prepared,
        checked,
        &sender_relay,
        stop,
    ))
    .await;
    telling.abort();
    let ended = finish(&copies, client, &copy, ended, cut_off, &sender_relay).await;
    // After this, an equal order starts a new copy, even if the client is still reading the result of this copy.
    drop(entered);
    let _in_time = tokio::time::timeout(LISTEN_TIMEOUT, &mut listening).await;
    listening.abort();
    ended.map(|summary| Sent::Copied(copy.to, Box::new(summary)))
}

fn copies_disabled() -> Refusal {
    denied("only 'zmove serve' makes copies between hosts")
}

fn already_running() -> Refusal {
    Refusal::new(RefusalCode::Busy, "this copy is already running")
}

/// Returns the client's read access if its key is allowed to order copies to the destination `to`.
fn rights(
    authorized: &Authorized,
    key: Fingerprint,
    to: &HostAddress,
) -> Result<ReadAccess, Refusal> {
    let access = authorized
        .reads
        .clone()
        .ok_or_else(|| may_not_read(key, authorized))?;
    let is_there = |allowed: &String| {
        Remote::parse_endpoint(allowed).is_ok_and(|allowed| {
            allowed.host.eq_ignore_ascii_case(&to.host) && allowed.port == to.port
        })
    };
    let may = match &authorized.to {
        Destinations::Anywhere => true,
        Destinations::Listed(places) => places.iter().any(is_there),
    };
    if may {
        return Ok(access);
    }
    let name = argument_of(&authorized.name);
    let bracketed = if to.host.contains(':') {
        format!("[{}]", to.host)
    } else {
        to.host.clone()
    };
    let place = format!("{bracketed}:{}", to.port);
    let text = format!(
        "this key may not have files sent from there to {place}. On that host, run: zmove allow {key} --name {name} \
         --read-root DIR --to {place}"
    );
    Err(denied(text))
}

/// Accepts the order and waits for the client's grant.
async fn begin(session: &mut SendingSession) -> Result<Begin, SendingError> {
    let PeerControl { reader, writer } = &mut session.control;
    writer
        .send(&encode_message(&ToSender::Copy(CopyState::Ready)))
        .await?;
    let mut held = session.share.quota.empty_charge();
    let said = tokio::time::timeout(BEGIN_TIMEOUT, next(reader, &mut held)).await;
    match said.map_err(|_| SendingError::Silent)?? {
        ToSource::Begin(begin) => Ok(begin),
        _ => Err(WireError::OutOfOrder {
            what: "a second order",
        }
        .into()),
    }
}

/// Attaches a client to a running copy. The client replaces the client that was attached before.
async fn listen(mut control: PeerControl, running: &RunningCopy) -> Result<Sent, SendingError> {
    let follows = ToSender::Copy(CopyState::Follows { id: running.id });
    control.writer.send(&encode_message(&follows)).await?;
    let words = running.sender_relay.attach();
    forward_messages(control, words).await;
    Ok(Sent::Answered)
}

async fn send_ended(
    control: PeerControl,
    id: [u8; 16],
    ended: EndedCopy,
) -> Result<Sent, SendingError> {
    let mut said = encode_message(&ToSender::Copy(CopyState::Follows { id }));
    said.extend(encode_message(&ToReceiver::Relay(final_message(ended))));
    send_last_message(control, &said, LISTEN_TIMEOUT).await?;
    Ok(Sent::Answered)
}

/// Returns the final message of a copy.
fn final_message(copy: EndedCopy) -> Relay {
    match copy.ended {
        Ok(account) => Relay::Account(Box::new(account)),
        Err(refusal) => Relay::Broken(refusal),
    }
}

/// Forwards the messages of a copy to a client until the copy ends or the client disconnects.
async fn forward_messages(control: PeerControl, mut words: UnboundedReceiver<RelayMessage>) {
    let PeerControl {
        mut reader,
        mut writer,
    } = control;
    let gone = reader.receive();
    tokio::pin!(gone);
    loop {
        tokio::select! {
            word = words.recv() => {
                let Some(RelayMessage { bytes, held }) = word else { break };
                if writer.send(&bytes).await.is_err() {
                    return;
                }
                drop(held);
            }
            // The client must not send anything more. It has either disconnected or violated the protocol.
            _ = &mut gone => return,
        }
    }
    let _goodbye = writer.finish().await;
    // Incoming data is read to the end, because closing the connection with unread data could destroy messages in
    // transit.
    let _in_time = tokio::time::timeout(LISTEN_TIMEOUT, gone).await;
}

/// The input to the authorization that is repeated before each session of a copy.
struct AuthorizationCheck {
    claim: Claim,
    authorizer: Arc<Authorizer>,
    to: HostAddress,
    quota: Quota,
}

impl AuthorizationCheck {
    fn access(&self) -> Result<ReadAccess, BoxError> {
        let authorized = self.authorizer.authorize(&self.claim)??;
        Ok(rights(&authorized, self.claim.key, &self.to).map_err(|refusal| refusal.text)?)
    }
}

/// The search for the sources of a later session.
struct RepeatedSearch {
    fetch: Fetch,
    list: Option<Arc<[u8]>>,
    checked: AuthorizationCheck,
}

impl RepeatedSearch {
    /// Searches on a blocking thread until the future is dropped. A search of large directories can take long, and it
    /// shares CPU time with the key's other work. It must therefore not occupy the threads of the runtime, which serve
    /// all keys.
    async fn again(self: Arc<Self>) -> Result<PushJob, BoxError> {
        let stopping = StopOnDrop::default();
        let stopped = stopping.flag();
        let searched = tokio::task::spawn_blocking(move || {
            let Self {
                fetch,
                list,
                checked,
            } = &*self;
            let access = checked.access()?;
            // The reservation for the sources covers the sources of every session.
            let found = job(fetch, list.as_ref(), &access, &checked.quota, &stopped);
            Ok(found.map_err(|refusal| refusal.text)?.job)
        });
        searched.await?
    }
}

async fn push(
    copies: &Copies,
    order: &CopyOrder,
    Begin { grant, key }: Begin,
    prepared: Prepared,
    checked: AuthorizationCheck,
    sender_relay: &Arc<SenderRelay>,
    stop: impl Future<Output = ()>,
) -> Result<Summary, PushError> {
    let Prepared {
        mut job,
        config,
        mut fetch,
        list,
        missing,
        held: _until_the_end,
        ..
    } = prepared;
    let missing_count = missing.len() as u64;
    sender_relay.fail_all(missing);
    fetch.open.grant = Some(grant);
    job.open.grant = Some(grant);
    let started = Instant::now();
    let first = blocking(move || StartedPush::new(job, config, None, started)).await;
    let HostAddress { host, port } = order.to.clone();
    let remote = Remote {
        host,
        port,
        path: fetch.open.target.clone(),
        login: None,
    };
    let settings = dial_settings(order, Fingerprint(key), copies.identity());
    let can_be_repeated = fetch.open.can_be_repeated();
    let quota: Arc<dyn PeerQuota> = Arc::new(KeyQuota(checked.quota.clone()));
    let search = Arc::new(RepeatedSearch {
        fetch,
        list,
        checked,
    });
    let again = || Box::pin(Arc::clone(&search).again()) as JobFuture;
    let patience = Timeout(Duration::from_secs(order.patience_secs).min(RETRY_TIMEOUT_MAX));
    let pushing = RemotePush {
        receiver: RetryPolicy {
            connector: Connector {
                home: copies.home(),
                remote: &remote,
                settings: &settings,
                listener: &CopyNotices {
                    sender_relay,
                    begun: AtomicBool::new(false),
                },
            },
            timeout: if can_be_repeated {
                patience
            } else {
                Timeout::NONE
            },
            busy_timeout: patience,
        },
        job: &again,
        quota,
        observer: Arc::<SenderRelay>::clone(sender_relay),
    };
    let mut summary = pushing.push(first, stop).await?.summary;
    summary.counters.failed += missing_count;
    Ok(summary)
}

fn dial_settings(order: &CopyOrder, key: Fingerprint, own: &Identity) -> DialSettings {
    DialSettings {
        key: Some(key),
        identity: Some(own.clone()),
        streams: order
            .streams
            .map(|lanes| lanes.clamp(1, zmove_wire::limits::LANES_MAX)),
        reach: DialOptions {
            transport: order.transport,
            ..DialOptions::default()
        },
        cipher: if order.clear {
            Cipher::None
        } else {
            Cipher::Tls
        },
        limit: order.fetch.rate_max.map(RateLimit::nearest),
        path_check: match order.fetch.open.intent {
            Intent::Inspect => PathCheck::First,
            _ => PathCheck::OnStall,
        },
        ..DialSettings::default()
    }
}

/// Reports events between sessions to the client.
struct CopyNotices<'a> {
    sender_relay: &'a Arc<SenderRelay>,
    begun: AtomicBool,
}

impl Listener for CopyNotices<'_> {
    fn hear(&self, notice: &Notice<'_>) {
        match notice {
            Notice::SessionBegins { .. } if self.begun.swap(true, Ordering::Relaxed) => {
                self.sender_relay.report_restart()
            }
            Notice::ConnectionLost { .. }
            | Notice::ReceiverBusy { .. }
            | Notice::BlackHole { .. } => {
                self.sender_relay.warn(format!("sender: {notice}"));
            }
            // Other notices concern only this host.
            _ => {}
        }
    }
}

/// Stores the result of a copy and reports it.
async fn finish(
    copies: &Arc<Copies>,
    client: Fingerprint,
    order: &CopyOrder,
    ended: Result<Summary, PushError>,
    cut_off: Option<StopReason>,
    sender_relay: &SenderRelay,
) -> Result<Summary, SendingError> {
    let told = match &ended {
        Ok(summary) => Ok(TransferAccount::from(summary.clone())),
        Err(error) => Err(cut_off.map_or_else(|| refusal_of(error), StopReason::refusal)),
    };
    let result = EndedCopy {
        to: order.to.clone(),
        ended: told,
        strict: order.fetch.open.keeping.strict,
    };
    // A copy that stops because its daemon is shutting down has not ended. The client can order the same copy again to
    // continue it.
    if cut_off != Some(StopReason::Stopping) {
        let copies = Arc::clone(copies);
        let id = order.id;
        let kept = result.clone();
        let kept = tokio::task::spawn_blocking(move || copies.store_result(client, id, kept)).await;
        if let Ok(Err(error)) = kept {
            sender_relay.warn(format!("sender: store the result: {error}"));
        }
    }
    sender_relay.send_last(final_message(result));
    ended.map_err(SendingError::Copy)
}

/// Returns the reason for the failure of a copy, for its client.
fn refusal_of(error: &PushError) -> Refusal {
    let text = Causes(error).to_string();
    let dial = |error: &ConnectError| match error.dial() {
        Some(
            DialError::UnknownHost { .. }
            | DialError::HostKeyChanged { .. }
            | DialError::HostKeyUnproven { .. }
            | DialError::HostCertificate { .. },
        ) => RefusalCode::UnknownKey,
        Some(_) => RefusalCode::Busy,
        None => RefusalCode::Failed,
    };
    let code = match error {
        PushError::Connect(error) => dial(error),
        PushError::Session(SessionError::Refused(refusal))
            if refusal.code != RefusalCode::Stopping =>
        {
            refusal.code
        }
        PushError::Session(_)
        | PushError::GivenUp { .. }
        | PushError::InVain { .. }
        | PushError::StillBusy { .. } => RefusalCode::Broken,
        _ => RefusalCode::Failed,
    };
    Refusal::new(code, text)
}

/// Issues a grant to the peer.
pub(crate) async fn grant(
    session: SendingSession,
    order: GrantOrder,
) -> Result<Sent, SendingError> {
    let source = Fingerprint(order.source);
    let target = order.open.target.clone();
    let give = move |copies: &Copies, claim: &Claim, authorized: &Authorized| {
        let granted = copies.grants.give(claim, authorized, order);
        granted.map(ToSender::Granted)
    };
    answer(session, give).await?;
    Ok(Sent::Granted { source, target })
}

/// Reports the state or the result of a copy to the peer.
pub(crate) async fn send_result(
    session: SendingSession,
    id: [u8; 16],
    stop: bool,
) -> Result<Sent, SendingError> {
    let look = move |copies: &Copies, claim: &Claim, _: &Authorized| {
        let text = "no copy with this key and id is known here (results are kept for one day)";
        let unknown = || Refusal::new(RefusalCode::Target, text);
        let result = copies.result(claim.key, id, stop)?;
        result.map(ToSender::Result).ok_or_else(unknown)
    };
    answer(session, look).await?;
    Ok(Sent::Answered)
}

/// Runs `find` on a blocking thread and sends its result to the peer.
async fn answer(
    session: SendingSession,
    find: impl FnOnce(&Copies, &Claim, &Authorized) -> Result<ToSender, Refusal> + Send + 'static,
) -> Result<(), SendingError> {
    let SendingSession {
        control,
        copies,
        claim,
        authorized,
        ..
    } = session;
    let Some(copies) = copies else {
        return Err(refuse(control, copies_disabled()).await);
    };
    let finding = tokio::task::spawn_blocking(move || find(&copies, &claim, &authorized));
    let found = finding.await.unwrap_or_else(|_panic| {
        Err(Refusal::new(
            RefusalCode::Failed,
            "a thread of the sender panicked; see its log",
        ))
    });
    match found {
        Ok(message) => {
            Ok(send_last_message(control, &encode_message(&message), LISTEN_TIMEOUT).await?)
        }
        Err(refusal) => Err(refuse(control, refusal).await),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zmove_wire::Open;

    /// In this test, the only blocking thread is busy. A search that finishes immediately must therefore have run on a
    /// thread of the runtime.
    #[test]
    fn sources_are_looked_for_again_beside_the_runtime() {
        let key = Fingerprint([1; 32]);
        let checked = AuthorizationCheck {
            claim: Claim::again(key, Vec::new()),
            authorizer: Arc::new(Authorizer::Only(key)),
            to: HostAddress {
                host: "h".into(),
                port: 1,
            },
            quota: Quota::default(),
        };
        let fetch = Fetch::new(Open::new(Vec::new(), [0; 16]), Vec::new());
        let search = Arc::new(RepeatedSearch {
            fetch,
            list: None,
            checked,
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(1)
            .build()
            .unwrap();
        runtime.block_on(async {
            let (release, released) = std::sync::mpsc::channel::<()>();
            let working = tokio::task::spawn_blocking(move || released.recv());
            let searching = search.again();
            tokio::pin!(searching);
            let first = tokio::select! {
                biased;
                found = &mut searching => Some(found.map(drop)),
                () = std::future::ready(()) => None,
            };
            assert!(first.is_none(), "{first:?}");
            release.send(()).unwrap();
            working.await.unwrap().unwrap();
            // The key in this test is not allowed to order copies to any host.
            assert!(searching.await.is_err());
        });
    }
}
