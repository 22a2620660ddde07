//! Authorizes a peer by its own key, by a client's grant, or by a grant of the head of a job.
//!
//! A peer is authorized when it has proved its key. It is authorized again when its transfer is about to begin, because
//! much time may have passed in the queue or before the greeting. **Invariant:** a transfer is in the list of transfers
//! before its rights are read for the last time. If its key is removed before that reading, the transfer does not
//! begin. If the key is removed later, `allow remove --now` finds the transfer in the list.

use std::net::SocketAddr;
use std::sync::Arc;

use zmove_transport::{Claim, Denial, Fingerprint};
use zmove_wire::{Greeting, Refusal, ToSender, encode_message};

use super::{Shared, denial_refusal, with_causes};
use crate::access::authorizer::Authorized;
use crate::access::refusals::{REFUSAL_TIMEOUT, rights_unreadable};
use crate::event::Rejection;
use crate::node_session;
use crate::sending::{PeerControl, send_last_message};

impl Shared {
    /// Authorizes a peer that has proved its key. Logs a denial and returns it as a refusal.
    ///
    /// Authorization reads files and checks certificates. It runs on a blocking thread, so that other connections do
    /// not wait for it.
    pub(super) async fn authorize(
        &self,
        claim: Claim,
        address: SocketAddr,
    ) -> Result<Authorized, Refusal> {
        let key = claim.key;
        let authorizer = Arc::clone(&self.authorizer);
        let copies = self.copies.clone();
        let own = self.listener.fingerprint();
        let authorize = move || {
            let authorized = authorizer.authorize(&claim);
            match (&authorized, &claim.job_grant) {
                // A node whose own line in the list allows it to lead jobs needs no grant.
                (Ok(Ok(by_line)), Some(_)) if by_line.may_lead() => {}
                (Ok(Ok(_) | Err(Denial::Unknown { .. })), Some(grant)) => {
                    return node_session::authorize(&authorizer, own, &claim, grant);
                }
                _ => {}
            }
            let Ok(Err(Denial::Unknown { key })) = authorized else {
                return authorized;
            };
            // A host that is authorized by a client's grant needs no line in the list of keys.
            let clients = copies
                .map(|copies| copies.grants.clients_for(key))
                .unwrap_or_default();
            if clients.is_empty() {
                authorized
            } else {
                Ok(Ok(Authorized::from_grants(clients)))
            }
        };
        match self.authorizer_threads.run(authorize).await {
            Ok(Ok(authorized)) => Ok(authorized),
            Ok(Err(denial)) => {
                self.reject(Rejection::UnknownKey, address, with_causes(&denial));
                Err(denial_refusal(key, &denial))
            }
            Err(error) => {
                self.reject(Rejection::KeyList, address, with_causes(&error));
                Err(rights_unreadable())
            }
        }
    }

    /// Authorizes the peer of a transfer that is about to begin, or refuses the transfer.
    pub(super) async fn authorize_again(
        &self,
        claim: Claim,
        address: SocketAddr,
        control: PeerControl,
        greeting: Option<&Greeting>,
    ) -> Option<(PeerControl, Authorized)> {
        let key = claim.key;
        match self.authorize(claim, address).await {
            Ok(authorized) => Some((control, authorized)),
            Err(refusal) => {
                self.refuse_transfer(key, control, greeting, refusal).await;
                None
            }
        }
    }

    /// Refuses the transfer of a key. Sends `greeting` first if the peer has not been greeted yet.
    pub(super) async fn refuse_transfer(
        &self,
        key: Fingerprint,
        control: PeerControl,
        greeting: Option<&Greeting>,
        refusal: Refusal,
    ) {
        let Some(_told) = self.admissions.admit_refusal(key) else {
            return;
        };
        let mut words = greeting.map_or_else(Vec::new, |greeting| greeting.encode().to_vec());
        words.extend(encode_message(&ToSender::Refused(refusal)));
        let _peer_gone = send_last_message(control, &words, REFUSAL_TIMEOUT).await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::AsyncWriteExt as _;
    use zmove_disk::RootGuard;
    use zmove_receiver::ReceiverConfig;
    use zmove_transport::{
        Access, AuthorizedKeys, ChannelDialer, DialOptions, Grant, HostPolicy, Identity, KeyList,
        Listener, SocketConfig, control_pair,
    };
    use zmove_types::TransferId;
    use zmove_wire::{RefusalCode, Role, TransportChoice, decode_message};

    use super::*;
    use crate::access::authorizer::Authorizer;
    use crate::daemon::Daemon;
    use crate::transfers::StopReason;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// A proxy can delay a greeting until the operator has removed the key and ended its transfers.
    #[tokio::test]
    async fn a_key_that_was_removed_before_its_greeting_begins_nothing() {
        let home = tempfile::tempdir().unwrap();
        let home = home.path();
        let [server, client] = [(); 2].map(|()| Identity::for_once().unwrap());
        let roots = vec![home.to_owned()];
        let grant = Grant::new(client.fingerprint(), "ann", roots, Access::WriteOnly);
        AuthorizedKeys::allow(home, grant).unwrap();
        let any = "127.0.0.1:0".parse().unwrap();
        let socket = SocketConfig::default();
        let listener = Listener::bind(any, &server, TransportChoice::Tcp, &socket);
        let listener = listener.await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let authorizer = Authorizer::Listed(KeyList::new(home.to_owned()), RootGuard::default());
        let daemon = Daemon::new(listener, authorizer, ReceiverConfig::default(), |_event| {});
        let shared = Arc::clone(&daemon.shared);
        let proving = tokio::spawn({
            let shared = Arc::clone(&shared);
            async move {
                let incoming = shared.listener.accept().await.unwrap();
                shared.prove(incoming, || ()).await.unwrap()
            }
        });
        let reach = DialOptions {
            transport: TransportChoice::Tcp,
            ..DialOptions::default()
        };
        let policy = HostPolicy::Pinned(server.fingerprint());
        let dialer = ChannelDialer::new(&client, "127.0.0.1", port, policy, reach);
        let mut channel = dialer.await.unwrap().dial(PATIENCE).await.unwrap();
        let (proven, authorized) = proving.await.unwrap();

        AuthorizedKeys::remove(home, "ann").unwrap();
        let ended = daemon.transfers().end(StopReason::KeyRemoved, |_any| true);
        assert_eq!(ended, []);
        let greeting = Greeting::new(Role::Control, TransferId([7; 16]));
        channel.write_all(&greeting.encode()).await.unwrap();
        channel.flush().await.unwrap();
        let admitted = tokio::spawn(shared.admit(proven, authorized));
        let (mut reader, writer) = control_pair(channel);
        reader.greeting().await.unwrap();
        let answer = reader.receive().await.unwrap().unwrap();
        let ToSender::Refused(refusal) = decode_message(&answer).unwrap() else {
            panic!("{answer:?}");
        };
        assert_eq!(refusal.code, RefusalCode::UnknownKey, "{refusal:?}");
        drop((reader, writer));
        admitted.await.unwrap();
    }
}
