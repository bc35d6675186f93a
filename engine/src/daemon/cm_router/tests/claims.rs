//! Claims: conflicts as of one endpoint, precedence, bounds.

use std::net::{IpAddr, SocketAddr};

use feroce_wire::cm::{PortSpace, ServiceId};

use super::super::claims::{Claims, NoClaim};
use super::{A, B, PORT, SERVICE};
use crate::cm::{CmConfig, CmError, Endpoint, QpKind};
use crate::daemon::ClientId;
use crate::daemon::cm_router::{Claim, ClaimError, CmRouter, Limits};

fn port(ip: &str, reuse: bool, v6_only: bool) -> Claim {
    Claim { reuse, v6_only, ..Claim::port(PortSpace::Tcp, PORT, ip.parse().unwrap()) }
}

fn find(claims: &Claims, ip: &str) -> Result<ClientId, NoClaim> {
    claims.find(SERVICE, Some(ip.parse().unwrap()))
}

#[test]
fn two_clients_conflict_as_two_identifiers_of_an_endpoint() {
    let addresses = ["10.0.0.1", "10.0.0.2", "0.0.0.0", "127.0.0.1", "::", "::1", "fd77::1"];
    let variants = addresses.iter().flat_map(|ip| {
        [(false, false), (false, true), (true, false), (true, true)].map(|flags| (*ip, flags))
    });
    let variants: Vec<_> = variants.collect();
    for (first, second) in variants.iter().flat_map(|one| variants.iter().map(move |b| (one, b))) {
        let mut endpoint = Endpoint::new(CmConfig::default(), || 1);
        let mut bind = |(ip, (reuse, v6_only)): &(&str, (bool, bool))| {
            let id = endpoint.create(PortSpace::Tcp, QpKind::Rc);
            endpoint.set_reuse_address(id, *reuse).unwrap();
            endpoint.set_v6_only(id, *v6_only).unwrap();
            endpoint.bind(id, SocketAddr::new(ip.parse().unwrap(), PORT))
        };
        bind(first).unwrap();
        let expected = bind(second).map_err(|error| match error {
            CmError::AddressInUse => ClaimError::AddressInUse,
            _ => ClaimError::AddressNotAvailable,
        });
        let mut claims = Claims::default();
        let claim = |(ip, (reuse, v6_only)): &(&str, (bool, bool))| port(ip, *reuse, *v6_only);
        claims.add(A, claim(first), 9).unwrap();
        assert_eq!(claims.add(B, claim(second), 9), expected, "{first:?} {second:?}");
        if expected.is_err() {
            assert_eq!(claims.add(A, claim(second), 9), Ok(()), "the same client");
        }
    }
}

#[test]
fn listening_ends_sharing() {
    let mut claims = Claims::default();
    claims.add(A, port("10.0.0.1", true, false), 9).unwrap();
    claims.add(B, port("10.0.0.1", true, false), 9).unwrap();
    let listens = port("10.0.0.1", false, false);
    assert_eq!(claims.add(A, listens, 9), Err(ClaimError::AddressInUse));
    claims.release(B, port("10.0.0.1", true, false));
    assert_eq!(claims.add(A, listens, 9), Ok(()));
    assert_eq!(claims.add(B, port("10.0.0.1", true, false), 9), Err(ClaimError::AddressInUse));
}

#[test]
fn the_exact_address_takes_precedence() {
    let mut claims = Claims::default();
    claims.add(A, port("0.0.0.0", true, false), 9).unwrap();
    claims.add(B, port("10.0.0.1", true, false), 9).unwrap();
    assert_eq!(find(&claims, "10.0.0.1"), Ok(B));
    assert_eq!(find(&claims, "10.0.0.9"), Ok(A));
    assert_eq!(find(&claims, "fd77::1"), Err(NoClaim::NoMatch));
    assert_eq!(claims.find(SERVICE, None), Err(NoClaim::NoMatch));
    let udp = ServiceId::new(PortSpace::Udp, PORT);
    let any = Some("10.0.0.1".parse().unwrap());
    assert_eq!(claims.find(udp, any), Err(NoClaim::UnknownService));
}

#[test]
fn any_ipv6_address_includes_ipv4_unless_v6_only() {
    for (v6_only, v4) in [(false, Ok(A)), (true, Err(NoClaim::NoMatch))] {
        let mut claims = Claims::default();
        claims.add(A, port("::", false, v6_only), 9).unwrap();
        assert_eq!(find(&claims, "10.0.0.1"), v4);
        assert_eq!(find(&claims, "fd77::1"), Ok(A));
    }
}

#[test]
fn a_service_id_without_addresses_belongs_to_one_client() {
    let service = ServiceId(0x1234);
    let mut claims = Claims::default();
    claims.add(A, Claim::service(service), 9).unwrap();
    assert_eq!(claims.add(B, Claim::service(service), 9), Err(ClaimError::AddressInUse));
    assert_eq!(claims.find(service, None), Ok(A));
    claims.remove_client(A);
    assert_eq!(claims.find(service, None), Err(NoClaim::UnknownService));
    assert_eq!(claims.add(B, Claim::service(service), 9), Ok(()));
}

#[test]
fn a_claim_made_twice_is_released_twice() {
    let mut claims = Claims::default();
    let claim = port("10.0.0.1", true, false);
    claims.add(A, claim, 9).unwrap();
    claims.add(A, claim, 9).unwrap();
    assert_eq!(claims.count(A), 1);
    claims.release(A, port("10.0.0.2", true, false));
    claims.release(B, claim);
    claims.release(A, claim);
    assert_eq!(find(&claims, "10.0.0.1"), Ok(A));
    claims.release(A, claim);
    assert_eq!((find(&claims, "10.0.0.1"), claims.count(A)), (Err(NoClaim::UnknownService), 0));
    claims.release(A, claim);
}

#[test]
fn claims_are_limited_per_client() {
    let mut router = CmRouter::new(1, || 0);
    let claim = |port| Claim::port(PortSpace::Tcp, port, IpAddr::from([0, 0, 0, 0]));
    assert_eq!(router.claim(A, claim(1)), Err(ClaimError::UnknownClient));
    let limits = Limits { claims: 2, ..Limits::default() };
    router.add_client(A, limits);
    router.add_client(B, limits);
    assert_eq!(
        [1, 2, 3, 1].map(|port| router.claim(A, claim(port))),
        [Ok(()), Ok(()), Err(ClaimError::TooMany(2)), Ok(())]
    );
    assert_eq!(router.claim(B, claim(3)), Ok(()));
    router.release(A, claim(2));
    assert_eq!(router.claim(A, claim(4)), Ok(()));
}
