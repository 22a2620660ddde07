//! Tests of the grants of copies: their eviction, revocation and rights.

use std::time::Instant;

use super::*;
use crate::copies::Copies;
use zmove_disk::RootGuard;
use zmove_transport::{Access, AuthorizedKeys, Grant, KeyList};
use zmove_types::ByteCount;

/// Two clients have issued grants to one host. Each session is charged to the client whose grant it names.
#[test]
fn a_session_is_booked_on_the_client_of_its_grant_and_keeps_its_rate() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let identity = Identity::load_or_create(home).unwrap();
    let copies = Copies::open(home, Some(&home.join("copies")), identity).unwrap();
    let [source, client, other] = [1, 2, 3].map(|byte| Fingerprint([byte; 32]));
    for key in [client, other] {
        let grant = Grant::new(key, "tester", vec![home.to_owned()], Access::WriteOnly);
        AuthorizedKeys::allow(
            home,
            Grant {
                max_rate: Some("1MB".parse().unwrap()),
                ..grant
            },
        )
        .unwrap();
    }
    let authorizer = Arc::new(Authorizer::Listed(
        KeyList::new(home.to_owned()),
        RootGuard::default(),
    ));
    let open = Open::new(b"in".to_vec(), [0; 16]);
    let give = |key| {
        let claim = Claim::again(key, Vec::new());
        let order = GrantOrder {
            id: [7; 16],
            source: source.0,
            open: open.clone(),
            sources: Vec::new(),
            bytes_max: None,
            entries_max: None,
        };
        let authorized = authorizer.authorize(&claim).unwrap().unwrap();
        copies.grants.give(&claim, &authorized, order).unwrap()
    };
    let [token, _others] = [client, other].map(give);
    // The copy is also running before the grant is used, because the sending host may still be trying to connect.
    let result = |key| copies.grants.result(key, [7; 16]);
    assert_eq!([client, source].map(result), [Some(CopyResult::Runs), None]);
    let limits = Limits {
        memory_per_identity: ByteCount(64 << 20),
        ..Limits::default()
    };
    let quotas = Arc::<Quotas>::default();
    let (rate, rates) = (SharedRate::default(), Arc::<Rates>::default());
    let resources = SessionResources {
        rate: rate.clone(),
        rates: Arc::clone(&rates),
        quotas: Arc::clone(&quotas),
        limits,
        granter: TransferGranter::default(),
    };
    let grants = PeerGrants::new(Arc::clone(&copies), authorizer, source, resources);
    let taken = grants
        .redeem(&Open {
            grant: Some(token),
            ..open
        })
        .unwrap();
    let _held = taken.quota.charge_memory(40 << 20).unwrap();
    assert_eq!(
        [client, other].map(|key| quotas.is_crowded(key)),
        [true, false]
    );
    // The session's lanes share the rate of that client, even if the sending host has no rate limit.
    let (now, limit) = (Instant::now(), "1MB".parse().unwrap());
    assert_eq!(rate.wait_to_begin(now), None);
    assert!(rates.of(client, limit).wait_to_begin(now).is_some());
    assert_eq!(rates.of(other, limit).wait_to_begin(now), None);
    let sessions = || copies.grants.grants.lock()[&token].sessions;
    assert_eq!(sessions(), 1);
    drop(grants);
    assert_eq!(sessions(), 0);
}

const CLIENT: Fingerprint = Fingerprint([1; 32]);

fn running(number: u8) -> StoredGrant {
    StoredGrant {
        token: [number; 32],
        order: GrantOrder {
            id: [number; 16],
            source: [2; 32],
            open: Open::new(Vec::new(), [0; 16]),
            sources: Vec::new(),
            bytes_max: None,
            entries_max: None,
        },
        client: CLIENT.0,
        certificates: Vec::new(),
        name: "tester".into(),
        rate_max: None,
        begin_by: u64::MAX,
        end_by: u64::MAX,
        run: Some([number; 16]),
        ended: None,
        counts: Counts::default(),
        receipt: None,
        sessions: 1,
        used_last: 0,
    }
}

#[test]
fn the_grant_that_ended_first_gives_way_then_one_that_no_session_uses() {
    let now = 1 << 30;
    let mut grants = HashMap::new();
    let mut give = |kept: StoredGrant| {
        let mut gone = Vec::new();
        make_room(&mut grants, CLIENT, now, &mut gone)?;
        grants.insert(kept.token, kept);
        Ok::<_, Refusal>(gone.iter().map(|token| token[0]).collect::<Vec<_>>())
    };
    let unused = |number, age: Duration| StoredGrant {
        sessions: 0,
        used_last: now - age.as_secs(),
        ..running(number)
    };
    let ended = |number, ago| StoredGrant {
        ended: Some(now - ago),
        ..running(number)
    };
    let just_lost = UNUSED_FOR - Duration::from_secs(1);
    let others = [
        ended(0, 1),
        ended(1, 2),
        unused(2, UNUSED_FOR),
        unused(3, just_lost),
    ];
    let full = u8::try_from(GRANTS_PER_KEY_MAX).unwrap();
    for kept in others.into_iter().chain((4..full).map(running)) {
        assert!(give(kept).unwrap().is_empty());
    }
    let gone = [64, 65, 66].map(|number| give(running(number)).unwrap());
    assert_eq!(gone, [1, 0, 2].map(|token| vec![token]));
    assert_eq!(give(running(67)).unwrap_err().code, RefusalCode::Full);
}

/// The file of a revoked grant would be read again after a restart.
#[test]
fn a_grant_whose_file_cannot_be_removed_authorizes_nothing_and_is_revoked_again() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let identity = Identity::load_or_create(home).unwrap();
    let copies = Copies::open(home, Some(&home.join("copies")), identity).unwrap();
    let all_copies = &copies.grants;
    let kept = running(7);
    let (id, source) = (kept.order.id, Fingerprint(kept.order.source));
    let path = home
        .join("copies/grants")
        .join(Hex(&kept.token).to_string());
    all_copies.grants.lock().insert(kept.token, kept);
    assert_eq!(all_copies.clients_for(source).len(), 1);
    std::fs::create_dir_all(&path).unwrap();
    let refusal = all_copies.revoke(CLIENT, id).unwrap_err();
    assert_eq!(refusal.code, RefusalCode::Failed);
    assert!(all_copies.clients_for(source).is_empty());
    std::fs::remove_dir(&path).unwrap();
    std::fs::write(&path, "").unwrap();
    all_copies.revoke(CLIENT, id).unwrap();
    assert!(!path.exists() && all_copies.grants.lock().is_empty());
}
