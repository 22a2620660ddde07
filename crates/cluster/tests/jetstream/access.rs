//! Who is let in, what each may do, and connections by TLS.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use zmove_cluster::WorkQueue;
use zmove_cluster::jetstream::{
    Access, BrokerState, Heard, JetStream, Nkey, NodeCertificate, NodeFailure, Notice, Notices,
    Role, ServerTls, User,
};

use crate::lab::{JOB, Lab, data, key, next, put_all, settings, stream};

fn nkey(directory: &Path, name: &str) -> (PathBuf, String) {
    let path = directory.join(name);
    let Nkey { seed, public_key } = Nkey::new().unwrap();
    fs::write(&path, seed).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    (path, public_key)
}

fn user(public_key: &str, role: Role) -> User {
    User {
        public_key: public_key.to_owned(),
        role,
    }
}

#[tokio::test]
async fn a_mover_may_do_what_its_role_needs_and_no_more() {
    let keys = TempDir::new().unwrap();
    let [head, mover, stranger] = ["head", "mover", "stranger"].map(|name| nkey(keys.path(), name));
    let users = vec![user(&head.1, Role::Head), user(&mover.1, Role::Mover)];
    let Some(lab) = Lab::start_with(|config| config.users = users).await else {
        return;
    };
    let with = |seed: &Path| Access {
        nkey_seed: Some(seed.to_owned()),
        ..lab.access()
    };
    let unknown = JetStream::open(&with(&stranger.0), settings(Role::Mover)).await;
    assert!(unknown.unwrap_err().to_string().contains("authorization"));
    assert!(
        JetStream::open(&lab.access(), settings(Role::Mover))
            .await
            .is_err(),
        "without a key"
    );

    let head = JetStream::open(&with(&head.0), settings(Role::Head))
        .await
        .unwrap();
    let queue = JetStream::open(&with(&mover.0), settings(Role::Mover))
        .await
        .unwrap();
    put_all(&queue, [data(1)]).await;
    let taken = next(&queue).await;
    queue.renew(&taken).await.unwrap();
    drop(taken);
    let taken = next(&queue).await;
    queue.done(taken).await.unwrap();
    assert!(queue.waiting().await.unwrap().is_idle());

    let seed = fs::read_to_string(&mover.0).unwrap().trim().to_owned();
    let options = async_nats::ConnectOptions::new().nkey(seed);
    let options = options.custom_inbox_prefix(format!("_INBOX.{}", mover.1));
    let (events_in, mut events) = unbounded_channel();
    let options = options.event_callback(move |event| {
        events_in.send(event.to_string()).unwrap();
        std::future::ready(())
    });
    let client = options.connect(lab.server.url()).await.unwrap();
    put_all(&queue, [data(2)]).await;
    let allowed = format!("$JS.API.STREAM.INFO.{}", stream());
    client.request(allowed, "{}".into()).await.unwrap();
    let forbidden = [
        "STREAM.DELETE",
        "STREAM.PURGE",
        "STREAM.UPDATE",
        "STREAM.MSG.GET",
    ];
    let forbidden = forbidden.map(|request| format!("$JS.API.{request}.{}", stream()));
    for subject in forbidden.into_iter().chain([format!("zmove.{JOB}.ended")]) {
        client.publish(subject.clone(), "{}".into()).await.unwrap();
        refused(&mut events, &format!("Publish to \"{subject}\"")).await;
    }
    let _answers_of_others = client.subscribe("_INBOX.>").await.unwrap();
    refused(&mut events, "Subscription to \"_INBOX.>\"").await;
    assert_eq!(head.waiting().await.unwrap().left, 1);
    head.close().await.unwrap();
    assert!(queue.take().await.unwrap().is_none());
}

/// Waits until the server reports that it does not allow this.
async fn refused(events: &mut UnboundedReceiver<String>, what: &str) {
    let refusal = format!("Permissions Violation for {what}");
    while !events.recv().await.unwrap().contains(&refusal) {}
}

/// By the nkey the head of a job tells whose invitation a node has come by.
#[tokio::test]
async fn a_notice_comes_with_the_nkey_of_its_node_and_of_no_other() {
    let keys = TempDir::new().unwrap();
    let [head, mover] = ["head", "mover"].map(|name| nkey(keys.path(), name));
    let users = vec![user(&head.1, Role::Head), user(&mover.1, Role::Mover)];
    let Some(lab) = Lab::start_with(|config| config.users = users).await else {
        return;
    };
    let with = |seed: &Path| Access {
        nkey_seed: Some(seed.to_owned()),
        ..lab.access()
    };
    let hears = Notices::open(&with(&head.0), &key(1)).await.unwrap();
    let tells = Notices::open(&with(&mover.0), &key(1)).await.unwrap();
    let notice = |message: &str| {
        Notice::Absent(NodeFailure {
            job: JOB.0,
            node: "n".to_owned(),
            message: message.to_owned(),
        })
    };
    tells.tell(&notice("as itself")).await.unwrap();
    let heard = hears.hear().await.unwrap();
    assert_eq!(
        heard,
        Heard {
            notice: Ok(notice("as itself")),
            nkey: Some(mover.1.clone())
        }
    );

    let seed = fs::read_to_string(&mover.0).unwrap().trim().to_owned();
    let client = async_nats::ConnectOptions::new()
        .nkey(seed)
        .connect(lab.server.url())
        .await
        .unwrap();
    let mut all = client.subscribe("zmove.cluster.*").await.unwrap();
    // who hears itself hears others
    client
        .publish(format!("zmove.cluster.{}", mover.1), "no notice".into())
        .await
        .unwrap();
    futures_util::StreamExt::next(&mut all).await.unwrap();
    tells.tell(&notice("once more")).await.unwrap();
    let sealed = futures_util::StreamExt::next(&mut all)
        .await
        .unwrap()
        .payload;
    for subject in [
        format!("zmove.cluster.{}", head.1),
        "zmove.cluster.notices".to_owned(),
    ] {
        client.publish(subject, sealed.clone()).await.unwrap();
    }
    client.flush().await.unwrap();
    tells.tell(&notice("at last")).await.unwrap();
    assert_eq!(hears.hear().await.unwrap().notice, Ok(notice("once more")));
    assert_eq!(
        hears.hear().await.unwrap().notice,
        Ok(notice("at last")),
        "nothing was told as the head"
    );
}

/// Whoever listens at the broker's address once that has ended may be another server.
#[tokio::test]
async fn a_server_of_another_name_is_not_the_broker() {
    let name = |number| Some(key(number).broker_name());
    let Some(mut lab) = Lab::start_with(|config| config.name = name(1)).await else {
        return;
    };
    let access = |number| Access {
        name: name(number),
        ..lab.access()
    };
    let (ours, theirs) = (access(1), access(2));
    let notices = Notices::open(&ours, &key(1)).await.unwrap();
    let another = Notices::open(&theirs, &key(2))
        .await
        .unwrap_err()
        .to_string();
    assert!(
        another.ends_with(" listens a NATS server that is not of this cluster"),
        "{another}"
    );
    let told = Notice::Absent(NodeFailure {
        job: JOB.0,
        node: "n".to_owned(),
        message: String::new(),
    });
    let is_heard = async || {
        notices.tell(&told).await.unwrap();
        tokio::time::timeout(Duration::from_millis(300), notices.hear())
            .await
            .is_ok()
    };
    lab.kill();
    lab.config.name = name(2);
    lab.start_again().await;
    let is_known = async {
        while notices.hindrance().is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), is_known)
        .await
        .expect("it is known as another");
    let client = async_nats::connect(lab.server.url()).await.unwrap();
    let mut all = client.subscribe("zmove.>").await.unwrap();
    let mark = || client.publish("zmove.mark", "mark".into());
    mark().await.unwrap();
    let heard = futures_util::StreamExt::next(&mut all).await.unwrap();
    assert_eq!(heard.payload, "mark");
    notices.tell(&told).await.unwrap();
    mark().await.unwrap();
    let heard = futures_util::StreamExt::next(&mut all).await.unwrap();
    assert_eq!(heard.payload, "mark", "nothing is told to it");
    lab.kill();
    lab.config.name = name(1);
    lab.start_again().await;
    let is_back = async { while !is_heard().await {} };
    tokio::time::timeout(Duration::from_secs(20), is_back)
        .await
        .expect("it is known as the broker");
    assert_eq!(notices.hindrance(), None);
}

/// A node may be invited while a push runs, and its invitation taken back.
#[tokio::test]
async fn a_running_server_hears_of_nodes_that_come_and_go() {
    let keys = TempDir::new().unwrap();
    let [head, mover] = ["head", "mover"].map(|name| nkey(keys.path(), name));
    let head_user = User {
        public_key: head.1.clone(),
        role: Role::Head,
    };
    let Some(mut lab) = Lab::start_with(|config| config.users = vec![head_user]).await else {
        return;
    };
    let with = |lab: &Lab, seed: &Path| Access {
        nkey_seed: Some(seed.to_owned()),
        ..lab.access()
    };
    let queue = JetStream::open(&with(&lab, &head.0), settings(Role::Head))
        .await
        .unwrap();
    put_all(&queue, [data(1)]).await;
    assert!(
        JetStream::open(&with(&lab, &mover.0), settings(Role::Mover))
            .await
            .is_err()
    );
    lab.config.users.push(User {
        public_key: mover.1.clone(),
        role: Role::Mover,
    });
    assert!(lab.config.reload().unwrap());
    let opened = async {
        loop {
            if let Ok(opened) = JetStream::open(&with(&lab, &mover.0), settings(Role::Mover)).await
            {
                return opened;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let opened = tokio::time::timeout(Duration::from_secs(20), opened)
        .await
        .expect("it is let in");
    assert_eq!(next(&opened).await.item, data(1));
    lab.config.users.pop();
    assert!(lab.config.reload().unwrap());
    let mut state = opened.state();
    state
        .wait_for(|state| *state == BrokerState::Lost)
        .await
        .unwrap();
    assert!(queue.waiting().await.is_ok(), "the head stays");
    lab.kill();
    assert!(!lab.config.reload().unwrap(), "none runs");
}

/// A push has a broker that runs read its configuration again, and then connects to it.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_comes_while_a_server_hears_of_nodes_is_let_in() {
    let keys = TempDir::new().unwrap();
    let [head, mover] = ["head", "mover"].map(|name| nkey(keys.path(), name));
    let head_user = User {
        public_key: head.1.clone(),
        role: Role::Head,
    };
    let mover_user = User {
        public_key: mover.1.clone(),
        role: Role::Mover,
    };
    let Some(lab) = Lab::start_with(|config| config.users = vec![head_user]).await else {
        return;
    };
    let access = Access {
        nkey_seed: Some(head.0.clone()),
        ..lab.access()
    };
    let mut config = lab.config.clone();
    let reloading = tokio::task::spawn_blocking(move || {
        for _ in 0..100 {
            if config
                .users
                .pop_if(|user| user.role == Role::Mover)
                .is_none()
            {
                config.users.push(mover_user.clone());
            }
            assert!(config.reload().unwrap());
        }
    });
    let mut opened = 0;
    while !reloading.is_finished() || opened < 100 {
        let cluster_key = key(1);
        let opening = (0..8).map(|_| Notices::open(&access, &cluster_key));
        futures_util::future::try_join_all(opening).await.unwrap();
        opened += 8;
    }
    reloading.await.unwrap();
}

#[tokio::test]
async fn a_seed_that_others_may_read_is_refused() {
    let keys = TempDir::new().unwrap();
    let (path, _) = nkey(keys.path(), "mover");
    fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
    let access = Access {
        nkey_seed: Some(path),
        ..Access::default()
    };
    let error = JetStream::open(&access, settings(Role::Mover))
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.ends_with("mover: others than its owner may read it"),
        "{error}"
    );
}

/// A certificate for loopback, and its key, as files.
fn certificate(
    directory: &Path,
    name: &str,
    issuer: &CertifiedIssuer<'_, KeyPair>,
) -> NodeCertificate {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let signed = params.signed_by(&key, issuer).unwrap();
    let files = NodeCertificate {
        certificate: directory.join(format!("{name}.pem")),
        key: directory.join(format!("{name}.key")),
    };
    fs::write(&files.certificate, signed.pem()).unwrap();
    fs::write(&files.key, key.serialize_pem()).unwrap();
    files
}

fn authority(directory: &Path, name: &str) -> (CertifiedIssuer<'static, KeyPair>, PathBuf) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let path = directory.join(format!("{name}.pem"));
    fs::write(&path, issuer.pem()).unwrap();
    (issuer, path)
}

#[tokio::test]
async fn a_connection_by_tls_proves_both_ends() {
    let files = TempDir::new().unwrap();
    let (ours, our_path) = authority(files.path(), "ours");
    let (others, other_path) = authority(files.path(), "others");
    let server = certificate(files.path(), "server", &ours);
    let tls = ServerTls {
        certificate: server.certificate,
        key: server.key,
        authority: Some(our_path.clone()),
    };
    let Some(lab) = Lab::start_with(|config| config.tls = Some(tls)).await else {
        return;
    };
    let node = certificate(files.path(), "node", &ours);
    let stranger = certificate(files.path(), "stranger", &others);
    let with = |authority: &Path, certificate: Option<&NodeCertificate>| Access {
        authority: Some(authority.to_owned()),
        certificate: certificate.cloned(),
        ..lab.access()
    };
    let head = JetStream::open(&with(&our_path, Some(&node)), settings(Role::Head))
        .await
        .unwrap();
    put_all(&head, [data(1)]).await;
    assert_eq!(next(&head).await.item, data(1));
    for access in [
        with(&our_path, None),
        with(&our_path, Some(&stranger)),
        with(&other_path, Some(&node)),
        lab.access(),
    ] {
        let refused = JetStream::open(&access, settings(Role::Mover)).await;
        assert!(refused.is_err(), "{access:?}");
    }
}
