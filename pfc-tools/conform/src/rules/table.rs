//! The list of rules.

use super::{Place, Rule, Severity, Side};

/// A place in the source code.
const fn at(file: &'static str, word: &'static str) -> Option<Place> {
    Some(Place { file, word })
}

/// A row of the mutations that a test applies to clean captures.
const fn mutation(word: &'static str) -> Option<Place> {
    at("tests/tests/conform_mutations.rs", word)
}

/// A verdict on a capture of the tree.
const fn capture(word: &'static str) -> Option<Place> {
    at("tests/tests/conform_captures.rs", word)
}

/// Defines the identifiers of the rules and the rules themselves from one list.
macro_rules! rules {
    ($($id:ident $name:literal $severity:ident $side:ident $statement:expr, $text:literal,
        $engine:expr, $proof:expr;)*) => {
        /// Identifies a rule.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum RuleId {
            $(#[doc = $text] $id,)*
        }

        /// Every rule, in the order of [`RuleId`].
        pub const RULES: &[Rule] = &[$(Rule {
            id: RuleId::$id,
            name: $name,
            severity: Severity::$severity,
            side: Side::$side,
            statement: $statement,
            text: $text,
            engine: $engine,
            proof: $proof,
        },)*];
    };
}

rules! {
    Icrc "PKT-ICRC" Error Fabric None,
        "The ICRC matches the bytes that it covers: nothing between sender and receiver changed \
         them.",
        at("wire/src/packet.rs", "verify_icrc"), mutation("an ICRC that is wrong");
    Checksum "PKT-IPV4-CHECKSUM" Error Sender None,
        "The checksum of the IPv4 header is right.",
        at("wire/src/packet/view.rs", "IpChecksum"), mutation("a header checksum that is wrong");
    Length "PKT-LENGTH" Error Sender None,
        "The lengths in the IP and UDP headers are those of the packet, and its headers fit into \
         it.",
        at("wire/src/packet/view.rs", "UdpLength"), mutation("a UDP length that is wrong");
    Fragment "PKT-FRAGMENT" Error Fabric None,
        "A RoCE packet is never fragmented.",
        at("wire/src/packet/view.rs", "Fragment"), mutation("a fragment");
    Version "PKT-VERSION" Error Sender None,
        "The version of the transport header is 0.",
        at("wire/src/packet/view.rs", "BthVersion"), mutation("transport version 1");
    Opcode "PKT-OPCODE" Error Sender None,
        "The opcode is one that is defined for RoCE.",
        at("wire/src/opcode.rs", "BY_OPCODE"), mutation("an undefined opcode");
    Pad "PKT-PAD" Error Sender None,
        "The pad extends the payload to a multiple of four bytes and is at most three bytes long.",
        at("wire/src/packet/view.rs", "Pad"), mutation("payload that is not padded");
    Reserved "PKT-RESERVED" Error Sender Some("C9-6"),
        "Reserved bits of the transport header are sent as 0.",
        at("wire/src/bth.rs", "reserved7"),
        mutation("reserved bits behind the acknowledge request");
    UdpChecksum "PKT-UDP-CHECKSUM" Error Sender None,
        "The UDP checksum is 0 or right.",
        at("wire/src/udp.rs", "checksum"), mutation("a UDP checksum that is wrong");
    CongestionBits "PKT-FECN-BECN" Note Fabric None,
        "FECN and BECN are 0, except BECN in a CNP: congestion in a RoCEv2 network is marked in \
         the IP header. Gateways to InfiniBand may set the bits.",
        at("wire/src/bth.rs", "fecn"), mutation("FECN in a request");
    Payload "PKT-PAYLOAD" Error Sender None,
        "Packets without data (READ requests, atomic requests, acknowledgements) have no payload.",
        at("wire/src/opcode.rs", "PayloadRule"), mutation("a READ request with payload");
    Transport "PKT-TRANSPORT" Error Sender None,
        "All packets to a QP are of the service of this QP.",
        at("engine/src/qp/connected.rs", "transport"),
        mutation("a datagram to the QP of a connection");
    Alone "PKT-STRAY" Warning Sender None,
        "A request gets a response or is retransmitted: it is not the only packet of its flow.",
        None, mutation("a single request to another QP");
    Nothing "CAP-NOTHING" Error Fabric None,
        "The capture has RoCE packets to judge.",
        None, mutation("a capture without a RoCE packet");
    Hole "CAP-HOLE" Warning Fabric None,
        "The capture has all packets: requests that were not captured are not acknowledged while \
         both directions are silent.",
        None, at("tests/tests/conform_causes.rs", "CAP-HOLE");
    Pkey "PKT-PKEY" Error Sender None,
        "The P_Key names a partition, and stays the same in a flow.",
        None, mutation("another P_Key");
    PkeyMember "PKT-PKEY-MEMBER" Error Sender None,
        "At least one end of a flow is a full member of the partition, and the membership of an \
         end does not change.",
        None, mutation("two limited members of a partition");
    QpNumber "PKT-QPN" Error Sender None,
        "A connected service does not send to QP 0, 1 or 0xffffff.",
        None, mutation("a connected request to QP 1");
    Source "PKT-SOURCE" Error Sender None,
        "The source address is a unicast address.",
        None, mutation("a multicast source");
    Solicited "PKT-SOLICITED" Error Requester None,
        "Only the last packet of a SEND or of a WRITE with immediate requests a solicited event.",
        at("engine/src/qp/request_headers.rs", "SOLICITED"),
        mutation("a solicited event of a WRITE");
    AckFlag "PKT-ACK-REQUEST" Error Responder None,
        "A response does not request an acknowledgement.",
        None, mutation("an acknowledge request in an acknowledgement");
    AckRequestIgnored "PKT-ACK-REQUEST-UNRELIABLE" Note Requester None,
        "Packets of unreliable services do not request an acknowledgement. Receivers ignore the \
         bit; Linux rxe sets it in management datagrams.",
        None, mutation("an acknowledge request of a datagram");
    Sequence "REQ-SEQUENCE" Error Requester None,
        "The packets of a message follow each other as First, Middles, Last, all of one \
         operation.",
        at("engine/src/qp/responder.rs", "position"), mutation("an Only inside of a message");
    Mtu "REQ-MTU" Error Requester None,
        "First and Middle packets carry exactly the path MTU, a Last packet 1 byte to the path \
         MTU, an Only packet at most the path MTU.",
        at("engine/src/qp/responder.rs", "mtu"), mutation("an Only longer than the MTU");
    WriteLength "REQ-WRITE-LENGTH" Error Requester None,
        "The packets of a WRITE carry as many bytes as its RETH says.",
        at("engine/src/qp/responder.rs", "dma_len"),
        mutation("a RETH with another length than the data");
    DmaLength "REQ-DMA-LENGTH" Error Requester None,
        "A message has at most 2^31 bytes.",
        at("engine/src/qp/responder.rs", "dma_len"), mutation("a READ of more than 2^31 bytes");
    AddressRange "REQ-ADDRESS" Error Requester None,
        "The last byte of a WRITE, READ or atomic has an address below 2^64.",
        at("engine/src/qp/responder.rs", "va"), mutation("a READ that ends beyond 2^64");
    AtomicAlign "REQ-ATOMIC-ALIGNMENT" Error Requester None,
        "The address of an atomic is a multiple of 8.",
        at("engine/src/qp/responder.rs", "atomic"), mutation("an atomic at an odd address");
    Unseen "REQ-PSN-SKIPPED" Error Requester None,
        "Requests use consecutive PSNs: a PSN that was never captured is not acknowledged.",
        at("engine/src/qp/requester.rs", "psn"), mutation("a skipped PSN");
    Jump "REQ-PSN-JUMP" Error Requester None,
        "A PSN is near the preceding PSNs, unless a new connection begins.",
        at("engine/src/qp/responder.rs", "Psn"), mutation("a distant PSN");
    Same "REQ-REPEAT-DIFFERS" Error Requester None,
        "A retransmitted request equals the original request: no PSN is used twice.",
        at("engine/src/qp/requester.rs", "psn"), mutation("a retransmission with other contents");
    ReadRange "REQ-READ-RANGE" Error Requester None,
        "A retransmitted READ requests the remaining part of the original READ, from the address \
         that belongs to its PSN.",
        at("engine/src/qp/request_headers.rs", "Read"),
        mutation("a retransmitted READ of another address");
    Restart "REQ-NAK-RESTART" Error Requester None,
        "After a NAK (PSN sequence) the requester restarts at the PSN that the NAK names.",
        at("engine/src/qp/completer.rs", "Nak"), mutation("an ignored NAK");
    RnrWait "REQ-RNR-WAIT" Error Requester None,
        "After an RNR NAK the requester waits for the time in the NAK.",
        at("engine/src/qp/completer.rs", "rnr"),
        mutation("a request sent too early after an RNR NAK");
    RetryCount "REQ-RETRY-COUNT" Error Requester None,
        "A request without a response is retransmitted at most seven times, or as often as the \
         connection setup says.",
        at("engine/src/qp/completer.rs", "retry"),
        mutation("retransmissions beyond the retry count");
    AfterError "REQ-AFTER-ERROR" Error Requester None,
        "After a NAK that fails the connection no more requests are sent on it.",
        at("engine/src/qp/completer.rs", "Nak"), mutation("a request after a fatal NAK");
    Outstanding "REQ-READ-DEPTH" Error Requester None,
        "No more READs and atomics are outstanding than the responder accepts at a time.",
        at("engine/src/qp/requester.rs", "rd_atomic"), mutation("more READs than negotiated");
    Credits "REQ-CREDITS" Error Requester None,
        "If end-to-end credits are in use, at most one SEND more than the credits allow is sent, \
         as a probe.",
        None, mutation("a SEND beyond the credits");
    Timeout "REQ-TIMEOUT" Warning Requester None,
        "Requests are answered in time: none is retransmitted without a NAK.",
        at("engine/src/qp/completer.rs", "timeout"), capture("REQ-TIMEOUT");
    AnswerAfterError "RSP-AFTER-ERROR" Error Responder None,
        "After a NAK that fails the connection the responder sends no more responses.",
        at("engine/src/qp/responder.rs", "Nak"), mutation("a response after a fatal NAK");
    AckUnsent "RSP-ACK-UNSENT" Error Responder None,
        "Only PSNs that were sent are acknowledged.",
        at("engine/src/qp/completer.rs", "psn"),
        mutation("an acknowledgement of an unsent PSN");
    AckBack "RSP-ACK-BACKWARDS" Error Responder None,
        "An acknowledgement never names a PSN below one that is already acknowledged.",
        at("engine/src/qp/responder.rs", "ack"),
        mutation("an acknowledgement with a lower PSN than the last");
    Syndrome "RSP-SYNDROME" Error Responder None,
        "The syndrome of a response is defined for RoCE.",
        at("wire/src/aeth.rs", "Reserved"), mutation("an undefined syndrome");
    Msn "RSP-MSN" Error Responder Some("C9-148"),
        "The MSN counts the messages that the responder has completed.",
        at("engine/src/qp/responder.rs", "msn"), mutation("MSN too low");
    NakOnce "RSP-NAK-ONCE" Error Responder None,
        "One NAK (PSN sequence) is sent per gap.",
        at("engine/src/qp/responder.rs", "Nak"), mutation("two NAKs for a gap");
    NakSpurious "RSP-NAK-SPURIOUS" Error Responder None,
        "A NAK (PSN sequence) is sent only after a later packet has revealed a gap.",
        at("engine/src/qp/responder.rs", "Nak"), mutation("a NAK without a gap");
    NakRange "RSP-NAK-RANGE" Error Responder None,
        "A NAK names a PSN that was sent and is not acknowledged.",
        at("engine/src/qp/responder.rs", "Nak"), mutation("a NAK for an acknowledged PSN");
    RnrKind "RSP-RNR-KIND" Error Responder None,
        "Only requests that consume a receive get RNR NAKs.",
        at("engine/src/qp/responder.rs", "rnr"), mutation("an RNR NAK for a READ");
    Rnr "RSP-RNR" Warning Responder None,
        "A receive is posted before its message arrives.",
        at("engine/src/qp/responder.rs", "rnr"), capture("RSP-RNR");
    Kind "RSP-KIND" Error Responder None,
        "READs are answered by READ responses, atomics by atomic acknowledgements, all other \
         requests by acknowledgements.",
        at("engine/src/qp/completer.rs", "Read"),
        mutation("an atomic answered by an acknowledgement");
    ReadSequence "RSP-READ-SEQUENCE" Error Responder None,
        "The responses to a READ are First, Middles and Last, or one Only.",
        at("engine/src/qp/completer.rs", "Read"),
        mutation("a Middle where the last response is due");
    ReadLength "RSP-READ-LENGTH" Error Responder None,
        "The responses to a READ carry the requested bytes: the path MTU in each response except \
         the last.",
        at("engine/src/qp/completer.rs", "Read"), mutation("a last response that is short");
    AtomicReplay "RSP-ATOMIC-REPLAY" Error Responder None,
        "A retransmitted atomic gets the original value again: the responder does not execute it \
         twice.",
        at("engine/src/qp/responder.rs", "atomic"), mutation("an atomic executed twice");
    AnswerQp "RSP-QPN" Error Responder None,
        "A response goes to the QP that sent the request.",
        at("engine/src/core/receive.rs", "qpn"), mutation("a response to another QP");
    Loss "FAB-LOSS" Warning Fabric None,
        "No packet is lost before the capture point.",
        None, mutation("a lost and retransmitted request");
    LossBeyond "FAB-LOSS-BEYOND" Warning Fabric None,
        "No packet is lost between the capture point and its receiver.",
        None, capture("FAB-LOSS-BEYOND");
    ResponseLoss "FAB-RESPONSE-LOSS" Warning Fabric None,
        "No response to a READ or atomic is lost before the capture point.",
        None, capture("FAB-RESPONSE-LOSS");
    AckLoss "FAB-ACK-LOSS" Warning Fabric None,
        "No acknowledgement is lost between the capture point and the requester: an acknowledged \
         request is not retransmitted.",
        None, capture("FAB-ACK-LOSS");
    Between "FAB-LOSS-BETWEEN" Warning Fabric None,
        "A packet that passes one capture point of an exchange also passes the other.",
        None, capture("RuleId::Between");
    Reorder "FAB-REORDER" Warning Fabric None,
        "Packets arrive in the order in which they were sent.",
        None, mutation("two reordered requests");
    Duplicate "FAB-DUPLICATE" Warning Fabric None,
        "No packet arrives twice.",
        None, mutation("a duplicated frame");
    Entropy "FAB-SOURCE-PORT" Warning Sender None,
        "The requests of a connection use one UDP source port: with several, they take different \
         paths and overtake each other.",
        at("wire/src/flow.rs", "udp_source_port"), mutation("another source port");
    Class "FAB-TRAFFIC-CLASS" Warning Sender None,
        "The requests of a connection use one DSCP: with several, they use different queues and \
         overtake each other.",
        at("wire/src/flow.rs", "traffic_class"), mutation("another DSCP");
    Mac "FAB-MAC" Note Fabric None,
        "The Ethernet addresses of a flow stay the same. They change with a route, or if a \
         redundant router takes over.",
        None, mutation("another source MAC address");
    Vlan "FAB-VLAN" Note Fabric None,
        "VLAN and priority of a flow stay the same. Switches may change them.",
        None, mutation("another VLAN priority");
    FlowLabel "FAB-FLOW-LABEL" Note Fabric None,
        "The IPv6 flow label of a flow stays the same.",
        None, mutation("another flow label");
    AnswerPath "FAB-ANSWER-PATH" Note Fabric None,
        "The responses of a flow use one UDP source port and one DSCP. Routers may change the \
         DSCP.",
        None, mutation("a response with another DSCP");
    CnpMarked "CNP-CE" Note Fabric None,
        "A CNP is not marked (CE). A switch may mark it if its sender made it ECN-capable.",
        None, mutation("a CNP that is marked");
    CnpPkey "CNP-PKEY" Error Responder None,
        "A CNP carries the P_Key of its connection.",
        None, mutation("a CNP with another P_Key");
    CnpUnknown "CNP-UNKNOWN-QP" Note Responder None,
        "A CNP goes to a QP that sends. The capture may miss the packets of this QP.",
        None, mutation("a CNP to an unknown QP");
    CnpFormat "CNP-FORMAT" Error Responder None,
        "A CNP has BECN 1, PSN 0, no acknowledge request, no pad, and 16 reserved bytes of 0.",
        at("wire/src/cnp.rs", "write"), mutation("a CNP whose reserved bytes are not 0");
    CnpInterval "CNP-INTERVAL" Error Responder None,
        "CNPs for a QP are at least 4 microseconds apart.",
        at("engine/src/congestion/notification.rs", "interval"),
        mutation("CNPs a microsecond apart");
    CnpWithoutMark "CNP-WITHOUT-MARK" Warning Responder None,
        "A CNP is sent only for packets that are marked (CE).",
        at("engine/src/core/congestion.rs", "marked"), mutation("a CNP without a mark");
    CnpMissing "CNP-MISSING" Warning Responder None,
        "CNPs are sent for packets that are marked (CE).",
        at("engine/src/core/congestion.rs", "marked"), mutation("a mark without a CNP");
    Ect "ECN-ECT" Error Sender None,
        "A sender marks all packets of a flow as ECN-capable (ECT), or none.",
        at("wire/src/ecn.rs", "Ect0"), mutation("ECT in one packet");
    UdSize "UD-SIZE" Error Requester Some("C10-93.1.1"),
        "A datagram is at most as long as the largest path MTU, 4096 bytes.",
        at("engine/src/qp/ud/send.rs", "Mtu"), mutation("a datagram that is too long");
    Qkey "UD-QKEY" Error Requester None,
        "Datagrams to a QP carry its Q_Key; the Q_Key of QP 1 is 0x80010000.",
        at("engine/src/qp/ud/receive.rs", "qkey"), mutation("another Q_Key");
    UdSource "UD-SOURCE-QP" Error Requester None,
        "The source QP of a datagram is neither QP 0 nor 0xffffff; it is QP 1 for a datagram to \
         QP 1.",
        None, mutation("a datagram from QP 0xffffff");
    Multicast "UD-MULTICAST" Error Requester None,
        "Datagrams to a multicast address, and only those, go to QP 0xffffff.",
        at("engine/src/core/multicast.rs", "Multicast"),
        mutation("a unicast datagram to QP 0xffffff");
    Mad "CM-MAD" Error Sender Some("C13-3"),
        "A datagram to QP 1 is a management datagram of 256 bytes with a defined version; in \
         communication management, method, status and attribute are defined.",
        at("wire/src/mad.rs", "MAD_LEN"), mutation("a MAD of another class version");
    CmOrder "CM-ORDER" Error Sender None,
        "REQ, REP and RTU set up a connection, DREQ and DREP end it, each after the preceding \
         message.",
        at("engine/src/cm/active.rs", "Rtu"), mutation("a DREP without a DREQ");
    CmId "CM-COMM-ID" Error Sender None,
        "Messages of a connection carry the communication IDs that its two sides have chosen.",
        at("engine/src/cm/mod.rs", "comm_id"), mutation("an RTU with another communication ID");
    CmTransaction "CM-TRANSACTION" Error Sender None,
        "A reply carries the transaction ID of the message that it answers.",
        at("engine/src/cm/mod.rs", "transaction"), mutation("a REP of another transaction");
    CmRetries "CM-RETRIES" Error Sender None,
        "A message without a reply is retransmitted at most as often as the REQ says.",
        at("engine/src/cm/disconnect.rs", "retries"), mutation("too many copies of a REQ");
    CmQpn "CM-DREQ-QPN" Error Sender None,
        "A DREQ names the QP that its receiver uses in the connection.",
        at("engine/src/cm/disconnect.rs", "remote_qpn"), mutation("a DREQ for another QP");
    CmPsn "CM-STARTING-PSN" Error Requester None,
        "The first request of a connection has the starting PSN of the connection setup.",
        at("engine/src/cm/active.rs", "starting_psn"),
        mutation("a starting PSN other than the negotiated one");
    CmRepeat "CM-REQ-DIFFERS" Error Sender None,
        "A repeated REQ has the QP and the starting PSN of the first one.",
        at("engine/src/cm/passive.rs", "Req"), mutation("a second REQ with another QP");
    CmGid "CM-GID" Error Sender None,
        "The GIDs of a REQ are the addresses of its sender and its receiver.",
        at("engine/src/cm/active.rs", "primary_local_gid"), mutation("a REQ with another GID");
    CmResources "CM-RESOURCES" Error Sender None,
        "A REP does not grant more READs and atomics than its REQ asked for.",
        at("engine/src/cm/passive.rs", "responder_resources"),
        mutation("a REP with more resources than its REQ");
    CmPkey "CM-PKEY" Error Sender None,
        "The packets of a connection carry the P_Key of its REQ.",
        None, mutation("a connection with another P_Key than its REQ");
    CmEnded "CM-DATA-AFTER-DREP" Error Requester None,
        "No requests are sent after the DREP of their connection.",
        at("engine/src/cm/disconnect.rs", "remote_qpn"), mutation("a request after the DREP");
    CmEarly "CM-EARLY-DATA" Error Requester None,
        "The active side sends requests only after the REP.",
        at("engine/src/cm/active.rs", "Rep"), mutation("requests ahead of the REP");
    CmRejected "CM-REJECTED" Error Responder None,
        "A connection request is accepted.",
        at("engine/src/cm/active.rs", "Rej"), capture("CM-REJECTED");
    CmSilent "CM-NO-RESPONSE" Error Responder None,
        "A REQ gets a reply.",
        at("engine/src/cm/passive.rs", "Req"), mutation("a REQ without a response");
    RetryExceeded "FAIL-RETRY" Error Responder None,
        "The connection does not fail: requests are answered before the retries are used up.",
        at("engine/src/qp/completer.rs", "retry"), capture("FAIL-RETRY");
    RnrExceeded "FAIL-RNR" Error Responder None,
        "The connection does not fail: a receive is posted before the RNR retries are used up.",
        at("engine/src/qp/completer.rs", "rnr"), capture("FAIL-RNR");
    InvalidRequest "FAIL-INVALID" Error Requester None,
        "The connection does not fail: no request is refused as invalid (NAK, invalid request).",
        at("engine/src/qp/responder.rs", "INVALID"), mutation("an invalid request");
    RemoteAccess "FAIL-ACCESS" Error Requester None,
        "The connection does not fail: remote keys, access rights and bounds permit every request \
         (NAK, remote access error).",
        at("engine/src/qp/responder/nak_reason.rs", "ACCESS"), capture("FAIL-ACCESS");
    RemoteOperation "FAIL-OPERATION" Error Responder None,
        "The connection does not fail: the responder can execute every request (NAK, remote \
         operational error).",
        at("engine/src/qp/responder.rs", "Operation"), capture("FAIL-OPERATION");
    AnswerLost "FAIL-ANSWER" Error Fabric None,
        "The connection does not fail: responses that pass the capture point reach the requester.",
        at("engine/src/qp/completer.rs", "retry"),
        at("tests/tests/conform_causes.rs", "FAIL-ANSWER");
    PsnMismatch "FAIL-PSN" Error Requester None,
        "Both sides of a connection start with the same PSN: new requests are not treated as \
         duplicates.",
        at("engine/src/qp/responder.rs", "duplicate"), capture("FAIL-PSN");
    QuirkMigReq "QUIRK-MIGREQ-0" Quirk Sender None,
        "MigReq is 1 in a connection without path migration. Linux rxe sends 0, which a \
         ConnectX-5 handles on a slow path.",
        None, capture("QuirkMigReq");
    QuirkCredits "QUIRK-CREDITS-0" Quirk Responder None,
        "The syndrome says that credits are not in use (0x1f). ConnectX advertises \"0 credits\" \
         although the connection does not use credits.",
        None, mutation("QUIRK-CREDITS-0");
    QuirkPort "QUIRK-PORT" Quirk Sender None,
        "The UDP source port is 0xc000 or above. Huawei uses the QP number, other vendors use a \
         lower port.",
        None, capture("QUIRK-PORT");
    QuirkId "QUIRK-IPV4-ID-0" Quirk Sender None,
        "The IPv4 identification distinguishes packets. Huawei sends 0.",
        None, capture("QUIRK-IPV4-ID-0");
    QuirkRnrNak "QUIRK-NAK-BEHIND-RNR" Quirk Responder None,
        "After an RNR NAK no other NAK follows for the same packet. Linux rxe sends a NAK (PSN \
         sequence) when the next packet of the message arrives.",
        None, capture("QUIRK-NAK-BEHIND-RNR");
    QuirkAckFirst "QUIRK-ACK-BEFORE-FIRST" Quirk Responder None,
        "A duplicate is acknowledged with the newest PSN. Linux rxe sends 0xffffff before it \
         has received the first request.",
        None, capture("QUIRK-ACK-BEFORE-FIRST");
    QuirkRetry "QUIRK-RETRY-FOREVER" Quirk Requester None,
        "A retry count of 7 means seven retries. Linux rxe restarts the count with each response \
         of any kind.",
        None, capture("QUIRK-RETRY-FOREVER");
    QuirkEarly "QUIRK-EARLY-RETRY" Quirk Requester None,
        "A request is retransmitted after a timeout. Linux rxe also retransmits requests whose \
         responses are on their way: its timer is coarse and is not restarted.",
        None, capture("QUIRK-EARLY-RETRY");
    QuirkReserved "QUIRK-RESERVED" Quirk Sender None,
        "Reserved bits are sent as 0. Huawei sets some of them in requests.",
        None, capture("QUIRK-RESERVED");
    QuirkMulticast "QUIRK-MULTICAST-ICRC" Quirk Sender None,
        "The ICRC of an InfiniBand multicast packet matches its bytes. Mellanox HCAs send another \
         value.",
        None, capture("QUIRK-MULTICAST-ICRC");
}
