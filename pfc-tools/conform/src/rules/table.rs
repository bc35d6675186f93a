//! The list.

use super::{Place, Rule, Severity, Side};

/// Where something is.
const fn at(file: &'static str, word: &'static str) -> Option<Place> {
    Some(Place { file, word })
}

/// The names of the rules, and the rules, from one list.
macro_rules! rules {
    ($($id:ident $name:literal $severity:ident $side:ident $statement:expr, $text:literal, $engine:expr, $proof:expr;)*) => {
        /// The name of a rule in this program.
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
        "The ICRC is that of the bytes: nothing between sender and receiver changed what it covers.",
        at("wire/src/packet.rs", "verify_icrc"), at("tests/tests/conform_mutations.rs", "an ICRC that is wrong");
    Checksum "PKT-IPV4-CHECKSUM" Error Sender None,
        "The checksum of the IPv4 header is right.",
        at("wire/src/packet.rs", "IpChecksum"), at("tests/tests/conform_mutations.rs", "a header checksum that is wrong");
    Length "PKT-LENGTH" Error Sender None,
        "The lengths that IP and UDP say are those of the packet, and its headers fit into it.",
        at("wire/src/packet.rs", "UdpLength"), at("tests/tests/conform_mutations.rs", "a UDP length that is wrong");
    Fragment "PKT-FRAGMENT" Error Fabric None,
        "A RoCE packet is never fragmented.",
        at("wire/src/packet.rs", "Fragment"), at("tests/tests/conform_mutations.rs", "a fragment");
    Version "PKT-VERSION" Error Sender None,
        "The version of the transport header is 0.",
        at("wire/src/packet.rs", "BthVersion"), at("tests/tests/conform_mutations.rs", "transport version 1");
    Opcode "PKT-OPCODE" Error Sender None,
        "The opcode is one that is defined for RoCE.",
        at("wire/src/opcode.rs", "BY_OPCODE"), at("tests/tests/conform_mutations.rs", "an undefined opcode");
    Pad "PKT-PAD" Error Sender None,
        "Pad fills the payload up to a multiple of four bytes, and is no longer than that.",
        at("wire/src/packet.rs", "Pad"), at("tests/tests/conform_mutations.rs", "payload that is not padded");
    Reserved "PKT-RESERVED" Error Sender Some("C9-6"),
        "Reserved bits of the transport header are sent as 0.",
        at("wire/src/bth.rs", "reserved7"), at("tests/tests/conform_mutations.rs", "reserved bits behind the acknowledge request");
    Payload "PKT-PAYLOAD" Error Sender None,
        "Packets that carry no data (requests of READs, atomics, acknowledgements) have no payload.",
        at("wire/src/opcode.rs", "PayloadRule"), at("tests/tests/conform_mutations.rs", "a READ request with payload");
    Pkey "PKT-PKEY" Error Sender None,
        "The P_Key names a partition, and stays the same in a flow.",
        None, at("tests/tests/conform_mutations.rs", "another P_Key");
    QpNumber "PKT-QPN" Error Sender None,
        "A connected service does not talk to QP 0, 1 or 0xffffff.",
        None, at("tests/tests/conform_mutations.rs", "a connected request to QP 1");
    Source "PKT-SOURCE" Error Sender None,
        "The source address is one of a single host.",
        None, at("tests/tests/conform_mutations.rs", "a multicast source");
    Solicited "PKT-SOLICITED" Error Requester None,
        "A solicited event is asked for only by the last packet of a SEND or of a WRITE with immediate data.",
        at("engine/src/qp/requester.rs", "SOLICITED"), at("tests/tests/conform_mutations.rs", "a solicited event of a WRITE");
    AckFlag "PKT-ACK-REQUEST" Error Responder None,
        "An answer asks for no acknowledgement.",
        None, at("tests/tests/conform_mutations.rs", "an acknowledge request in an acknowledgement");
    Sequence "REQ-SEQUENCE" Error Requester None,
        "The packets of a message follow each other: First, Middles, Last, all of one operation.",
        at("engine/src/qp/responder.rs", "position"), at("tests/tests/conform_mutations.rs", "an Only inside of a message");
    Mtu "REQ-MTU" Error Requester None,
        "Firsts and Middles carry exactly the path MTU, a Last 1 byte to the path MTU, an Only no more than it.",
        at("engine/src/qp/responder.rs", "mtu"), at("tests/tests/conform_mutations.rs", "an Only longer than the MTU");
    WriteLength "REQ-WRITE-LENGTH" Error Requester None,
        "The packets of a WRITE carry as many bytes as its RETH says.",
        at("engine/src/qp/responder.rs", "dma_len"), at("tests/tests/conform_mutations.rs", "a RETH with another length than the data");
    DmaLength "REQ-DMA-LENGTH" Error Requester None,
        "A message has no more than 2^31 bytes.",
        at("engine/src/qp/responder.rs", "dma_len"), at("tests/tests/conform_mutations.rs", "a READ of more than 2^31 bytes");
    AtomicAlign "REQ-ATOMIC-ALIGNMENT" Error Requester None,
        "The address of an atomic is a multiple of 8.",
        at("engine/src/qp/responder.rs", "atomic"), at("tests/tests/conform_mutations.rs", "an atomic at an odd address");
    Unseen "REQ-PSN-SKIPPED" Error Requester None,
        "Requests take PSNs without a gap: one that nobody saw is not acknowledged.",
        at("engine/src/qp/requester.rs", "psn"), at("tests/tests/conform_mutations.rs", "a skipped PSN");
    Jump "REQ-PSN-JUMP" Error Requester None,
        "A PSN lies near those before it, unless a new connection begins.",
        at("engine/src/qp/responder.rs", "Psn"), at("tests/tests/conform_mutations.rs", "a distant PSN");
    Same "REQ-REPEAT-DIFFERS" Error Requester None,
        "A request that is sent again is the same request: a PSN is not used twice.",
        at("engine/src/qp/requester.rs", "psn"), at("tests/tests/conform_mutations.rs", "a retransmission with other contents");
    ReadRange "REQ-READ-RANGE" Error Requester None,
        "A READ that is sent again asks for the rest of what it asked for before, from the address that belongs to its PSN.",
        at("engine/src/qp/requester.rs", "Read"), at("tests/tests/conform_mutations.rs", "a retransmitted READ of another address");
    Restart "REQ-NAK-RESTART" Error Requester None,
        "After a NAK (PSN sequence) the requester begins again with the PSN that the NAK names.",
        at("engine/src/qp/completer.rs", "Nak"), at("tests/tests/conform_mutations.rs", "an ignored NAK");
    RnrWait "REQ-RNR-WAIT" Error Requester None,
        "After an RNR NAK the requester waits for as long as that says.",
        at("engine/src/qp/completer.rs", "rnr"), at("tests/tests/conform_mutations.rs", "a request sent too early after an RNR NAK");
    RetryCount "REQ-RETRY-COUNT" Error Requester None,
        "A request is repeated no more than seven times (or as often as the connection was made with) without an answer.",
        at("engine/src/qp/completer.rs", "retry"), at("tests/tests/conform_mutations.rs", "retransmissions beyond the retry count");
    AfterError "REQ-AFTER-ERROR" Error Requester None,
        "After a NAK that ends the connection nothing more is sent on it.",
        at("engine/src/qp/completer.rs", "Nak"), at("tests/tests/conform_mutations.rs", "a request after a fatal NAK");
    Outstanding "REQ-READ-DEPTH" Error Requester None,
        "No more READs and atomics are under way than the responder said that it answers at a time.",
        at("engine/src/qp/requester.rs", "rd_atomic"), at("tests/tests/conform_mutations.rs", "more READs than negotiated");
    Credits "REQ-CREDITS" Error Requester None,
        "Where end-to-end credits were agreed on, no more SENDs go out than there are credits, and one that probes.",
        None, at("tests/tests/conform_mutations.rs", "a SEND beyond the credits");
    Timeout "REQ-TIMEOUT" Warning Requester None,
        "Requests are answered in time: none must be sent again without a NAK.",
        at("engine/src/qp/completer.rs", "timeout"), at("tests/tests/conform_captures.rs", "REQ-TIMEOUT");
    AckUnsent "RSP-ACK-UNSENT" Error Responder None,
        "Only what was sent is acknowledged.",
        at("engine/src/qp/completer.rs", "psn"), at("tests/tests/conform_mutations.rs", "an acknowledgement of an unsent PSN");
    AckBack "RSP-ACK-BACKWARDS" Error Responder None,
        "An acknowledgement never names a PSN below one that is acknowledged already.",
        at("engine/src/qp/responder.rs", "ack"), at("tests/tests/conform_mutations.rs", "an acknowledgement with a lower PSN than the last");
    Syndrome "RSP-SYNDROME" Error Responder None,
        "The syndrome of an answer is one that is defined for RoCE.",
        at("wire/src/aeth.rs", "Reserved"), at("tests/tests/conform_mutations.rs", "an undefined syndrome");
    Msn "RSP-MSN" Error Responder Some("C9-148"),
        "The MSN counts the messages that the responder has completed.",
        at("engine/src/qp/responder.rs", "msn"), at("tests/tests/conform_mutations.rs", "MSN too low");
    NakOnce "RSP-NAK-ONCE" Error Responder None,
        "One NAK (PSN sequence) is sent for a gap.",
        at("engine/src/qp/responder.rs", "Nak"), at("tests/tests/conform_mutations.rs", "two NAKs for a gap");
    NakSpurious "RSP-NAK-SPURIOUS" Error Responder None,
        "A NAK (PSN sequence) is sent when a later packet has shown a gap, and not otherwise.",
        at("engine/src/qp/responder.rs", "Nak"), at("tests/tests/conform_mutations.rs", "a NAK without a gap");
    NakRange "RSP-NAK-RANGE" Error Responder None,
        "A NAK names a PSN that was sent and is not acknowledged.",
        at("engine/src/qp/responder.rs", "Nak"), at("tests/tests/conform_mutations.rs", "a NAK for an acknowledged PSN");
    RnrKind "RSP-RNR-KIND" Error Responder None,
        "Only requests that take a receive are answered by RNR NAKs.",
        at("engine/src/qp/responder.rs", "rnr"), at("tests/tests/conform_mutations.rs", "an RNR NAK for a READ");
    Rnr "RSP-RNR" Warning Responder None,
        "A receive is posted when a message comes for it.",
        at("engine/src/qp/responder.rs", "rnr"), at("tests/tests/conform_captures.rs", "RSP-RNR");
    Kind "RSP-KIND" Error Responder None,
        "A READ is answered by READ responses, an atomic by an atomic acknowledgement, all else by acknowledgements.",
        at("engine/src/qp/completer.rs", "Read"), at("tests/tests/conform_mutations.rs", "an atomic answered by an acknowledgement");
    ReadSequence "RSP-READ-SEQUENCE" Error Responder None,
        "The responses to a READ are First, Middles and Last, or an Only.",
        at("engine/src/qp/completer.rs", "Read"), at("tests/tests/conform_mutations.rs", "a Middle where the last response is due");
    ReadLength "RSP-READ-LENGTH" Error Responder None,
        "The responses to a READ carry what it asks for: the path MTU in all but the last.",
        at("engine/src/qp/completer.rs", "Read"), at("tests/tests/conform_mutations.rs", "a last response that is short");
    AtomicReplay "RSP-ATOMIC-REPLAY" Error Responder None,
        "An atomic that is sent again is answered with the value of the first time: it is not carried out twice.",
        at("engine/src/qp/responder.rs", "atomic"), at("tests/tests/conform_mutations.rs", "an atomic executed twice");
    AnswerQp "RSP-QPN" Error Responder None,
        "An answer goes to the QP that the request came from.",
        at("engine/src/core/receive.rs", "qpn"), at("tests/tests/conform_mutations.rs", "a response to another QP");
    Loss "FAB-LOSS" Warning Fabric None,
        "Every packet comes as far as the capture: none is lost on the way there.",
        None, at("tests/tests/conform_mutations.rs", "a lost and retransmitted request");
    LossBeyond "FAB-LOSS-BEYOND" Warning Fabric None,
        "Every packet comes from the capture to the receiver: none is lost on the way.",
        None, at("tests/tests/conform_captures.rs", "FAB-LOSS-BEYOND");
    AnswerLoss "FAB-ANSWER-LOSS" Warning Fabric None,
        "Every answer to a READ or atomic comes as far as the capture.",
        None, at("tests/tests/conform_captures.rs", "FAB-ANSWER-LOSS");
    AckLoss "FAB-ACK-LOSS" Warning Fabric None,
        "Every acknowledgement comes from the capture to the requester: none that was captured has its request repeated.",
        None, at("tests/tests/conform_captures.rs", "FAB-ACK-LOSS");
    Between "FAB-LOSS-BETWEEN" Warning Fabric None,
        "What passes one capture of an exchange passes the other.",
        None, at("tests/tests/conform_captures.rs", "RuleId::Between");
    Reorder "FAB-REORDER" Warning Fabric None,
        "Packets arrive in the order in which they were sent.",
        None, at("tests/tests/conform_mutations.rs", "two reordered requests");
    Duplicate "FAB-DUPLICATE" Warning Fabric None,
        "No packet arrives twice.",
        None, at("tests/tests/conform_mutations.rs", "a duplicated frame");
    Entropy "FAB-SOURCE-PORT" Warning Sender None,
        "The requests of a connection have one UDP source port: with several, routes differ, and packets overtake each other.",
        at("wire/src/flow.rs", "udp_source_port"), at("tests/tests/conform_mutations.rs", "another source port");
    Class "FAB-TRAFFIC-CLASS" Warning Sender None,
        "The requests of a connection have one DSCP: with several, queues differ, and packets overtake each other.",
        at("wire/src/flow.rs", "traffic_class"), at("tests/tests/conform_mutations.rs", "another DSCP");
    CnpFormat "CNP-FORMAT" Error Responder None,
        "A CNP has BECN set, PSN 0, no acknowledge request, no pad, and 16 bytes of zeros.",
        at("wire/src/cnp.rs", "write"), at("tests/tests/conform_mutations.rs", "a CNP whose reserved bytes are not 0");
    CnpInterval "CNP-INTERVAL" Error Responder None,
        "CNPs for a QP are at least 4 microseconds apart.",
        at("engine/src/congestion/notification.rs", "interval"), at("tests/tests/conform_mutations.rs", "CNPs a microsecond apart");
    CnpUnasked "CNP-UNASKED" Warning Responder None,
        "CNPs answer packets that are marked (CE).",
        at("engine/src/core/congestion.rs", "marked"), at("tests/tests/conform_mutations.rs", "a CNP without a mark");
    CnpMissing "CNP-MISSING" Warning Responder None,
        "Packets that are marked (CE) are answered by CNPs.",
        at("engine/src/core/congestion.rs", "marked"), at("tests/tests/conform_mutations.rs", "a mark without a CNP");
    Ect "ECN-ECT" Error Sender None,
        "A sender of a flow says of all of its packets that they may be marked (ECT), or of none.",
        at("wire/src/ecn.rs", "Ect0"), at("tests/tests/conform_mutations.rs", "ECT in one packet");
    UdSize "UD-SIZE" Error Requester Some("C10-93.1.1"),
        "A datagram is no longer than the largest path MTU, 4096 bytes.",
        at("engine/src/qp/ud/send.rs", "Mtu"), at("tests/tests/conform_mutations.rs", "a datagram that is too long");
    Qkey "UD-QKEY" Error Requester None,
        "Datagrams to a QP carry its Q_Key: that of QP 1 is 0x80010000.",
        at("engine/src/qp/ud/receive.rs", "qkey"), at("tests/tests/conform_mutations.rs", "another Q_Key");
    UdSource "UD-SOURCE-QP" Error Requester None,
        "A datagram names the QP that it comes from: neither QP 0 nor 0xffffff, and QP 1 for one to QP 1.",
        None, at("tests/tests/conform_mutations.rs", "a datagram from QP 0xffffff");
    Multicast "UD-MULTICAST" Error Requester None,
        "Datagrams to a multicast address go to QP 0xffffff, and no others do.",
        at("engine/src/core/multicast.rs", "Multicast"), at("tests/tests/conform_mutations.rs", "a unicast datagram to QP 0xffffff");
    Mad "CM-MAD" Error Sender Some("C13-3"),
        "A datagram to QP 1 is a management datagram of 256 bytes, of a version that is defined.",
        at("wire/src/mad.rs", "MAD_LEN"), at("tests/tests/conform_mutations.rs", "a MAD of another class version");
    CmOrder "CM-ORDER" Error Sender None,
        "REQ, REP and RTU make a connection, DREQ and DREP end it, each after the one before.",
        at("engine/src/cm/active.rs", "Rtu"), at("tests/tests/conform_mutations.rs", "a DREP without a DREQ");
    CmId "CM-COMM-ID" Error Sender None,
        "Messages about a connection carry the communication ids that its two sides have chosen.",
        at("engine/src/cm/mod.rs", "comm_id"), at("tests/tests/conform_mutations.rs", "an RTU with another communication id");
    CmTransaction "CM-TRANSACTION" Error Sender None,
        "An answer carries the transaction id of what it answers.",
        at("engine/src/cm/mod.rs", "transaction"), at("tests/tests/conform_mutations.rs", "a REP of another transaction");
    CmRetries "CM-RETRIES" Error Sender None,
        "A message without an answer is sent again no more often than the REQ says.",
        at("engine/src/cm/disconnect.rs", "retries"), at("tests/tests/conform_mutations.rs", "too many copies of a REQ");
    CmQpn "CM-DREQ-QPN" Error Sender None,
        "A DREQ names the QP of its receiver in the connection.",
        at("engine/src/cm/disconnect.rs", "remote_qpn"), at("tests/tests/conform_mutations.rs", "a DREQ for another QP");
    CmPsn "CM-STARTING-PSN" Error Requester None,
        "The first request of a connection has the PSN that the other side asked for.",
        at("engine/src/cm/active.rs", "starting_psn"), at("tests/tests/conform_mutations.rs", "a starting PSN other than the negotiated one");
    CmEarly "CM-EARLY-DATA" Error Requester None,
        "Whoever asks for a connection sends requests only after the REP.",
        at("engine/src/cm/active.rs", "Rep"), at("tests/tests/conform_mutations.rs", "requests ahead of the REP");
    CmRejected "CM-REJECTED" Error Responder None,
        "A connection that is asked for is made.",
        at("engine/src/cm/active.rs", "Rej"), at("tests/tests/conform_captures.rs", "CM-REJECTED");
    CmSilent "CM-NO-ANSWER" Error Responder None,
        "A REQ is answered.",
        at("engine/src/cm/passive.rs", "Req"), at("tests/tests/conform_mutations.rs", "a REQ without a response");
    RetryExceeded "FAIL-RETRY" Error Responder None,
        "A connection lives on: its requests are answered before the requester has repeated them as often as it may.",
        at("engine/src/qp/completer.rs", "retry"), at("tests/tests/conform_captures.rs", "FAIL-RETRY");
    RnrExceeded "FAIL-RNR" Error Responder None,
        "A connection lives on: a receive is posted before the requester has tried as often as it may.",
        at("engine/src/qp/completer.rs", "rnr"), at("tests/tests/conform_captures.rs", "FAIL-RNR");
    InvalidRequest "FAIL-INVALID" Error Requester None,
        "A connection lives on: no request breaks the responder's rules (NAK, invalid request).",
        at("engine/src/qp/responder.rs", "INVALID"), at("tests/tests/conform_mutations.rs", "an invalid request");
    RemoteAccess "FAIL-ACCESS" Error Requester None,
        "A connection lives on: keys, rights and bounds of the memory allow what is asked for (NAK, remote access error).",
        at("engine/src/qp/responder.rs", "ACCESS"), at("tests/tests/conform_captures.rs", "FAIL-ACCESS");
    RemoteOperation "FAIL-OPERATION" Error Responder None,
        "A connection lives on: the responder can carry out what is asked for (NAK, remote operational error).",
        at("engine/src/qp/responder.rs", "Operation"), at("tests/tests/conform_captures.rs", "FAIL-OPERATION");
    PsnMismatch "FAIL-PSN" Error Requester None,
        "Both sides of a connection begin with the same PSN: new requests are not taken for duplicates.",
        at("engine/src/qp/responder.rs", "duplicate"), at("tests/tests/conform_captures.rs", "FAIL-PSN");
    QuirkMigReq "QUIRK-MIGREQ-0" Quirk Sender None,
        "MigReq is 1 in a connection that never migrates. Linux rxe sends 0, which puts a ConnectX-5 on a slow path.",
        None, at("tests/tests/conform_captures.rs", "QuirkMigReq");
    QuirkCredits "QUIRK-CREDITS-0" Quirk Responder None,
        "Without credits the syndrome says so (0x1f). ConnectX says \"0 credits\" without an agreement that they count.",
        None, at("tests/tests/conform_mutations.rs", "QUIRK-CREDITS-0");
    QuirkPort "QUIRK-PORT" Quirk Sender None,
        "The UDP source port is 0xc000 or above. Huawei uses the number of the QP, others a port below.",
        None, at("tests/tests/conform_captures.rs", "QUIRK-PORT");
    QuirkId "QUIRK-IPV4-ID-0" Quirk Sender None,
        "Packets can be told apart by the IPv4 identification. Huawei sends 0.",
        None, at("tests/tests/conform_captures.rs", "QUIRK-IPV4-ID-0");
    QuirkRnrNak "QUIRK-NAK-BEHIND-RNR" Quirk Responder None,
        "Behind an RNR NAK nothing follows for the same packet. Linux rxe sends a NAK (PSN sequence) when the next packet of the message comes.",
        None, at("tests/tests/conform_captures.rs", "QUIRK-NAK-BEHIND-RNR");
    QuirkAckFirst "QUIRK-ACK-BEFORE-FIRST" Quirk Responder None,
        "A duplicate is acknowledged with the newest PSN. Linux rxe says 0xffffff before it has received anything.",
        None, at("tests/tests/conform_captures.rs", "QUIRK-ACK-BEFORE-FIRST");
    QuirkRetry "QUIRK-RETRY-FOREVER" Quirk Requester None,
        "A retry count of 7 means seven. Linux rxe begins anew with each answer, whatever that says.",
        None, at("tests/tests/conform_captures.rs", "QUIRK-RETRY-FOREVER");
    QuirkEarly "QUIRK-EARLY-RETRY" Quirk Requester None,
        "A request is repeated when its answer is overdue. Linux rxe also repeats those whose answers are on their way: its timer is coarse, and is not set anew.",
        None, at("tests/tests/conform_captures.rs", "QUIRK-EARLY-RETRY");
    QuirkReserved "QUIRK-RESERVED" Quirk Sender None,
        "Reserved bits are sent as 0. Huawei sets some in requests.",
        None, at("tests/tests/conform_captures.rs", "QUIRK-RESERVED");
    QuirkMulticast "QUIRK-MULTICAST-ICRC" Quirk Sender None,
        "The ICRC of an InfiniBand multicast is that of its bytes. Mellanox HCAs send another one.",
        None, at("tests/tests/conform_captures.rs", "QUIRK-MULTICAST-ICRC");
}
