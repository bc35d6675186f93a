//! Datagrams: nothing is connected, but a service is asked which QP answers (service id resolution).

use feroce_wire::Pkey;
use feroce_wire::cm::{CmMad, IpCmHeader, SidrRep, SidrReq, SidrStatus};

use super::active::service_and_addresses;
use super::conn::{Patience, Peer};
use super::passive::{Asked, Nobody, is_ours, reply};
use super::state::{Phase, State};
use super::types::{
    CmError, CmId, Ece, EventKind, Parameters, Path, QpKind, Source, Status, lasts,
};
use super::{Endpoint, Over, private_data};
use crate::time::Instant;

impl Endpoint {
    /// Asks, for [`Endpoint::connect`].
    pub(super) fn ask(&mut self, id: CmId, data: &[u8], now: Instant) -> Result<(), CmError> {
        let conn = self.conn(id)?;
        let (service_id, addresses) = service_and_addresses(conn)?;
        let mut field = private_data(IpCmHeader::LEN, data)?;
        field[..IpCmHeader::LEN].copy_from_slice(&addresses.to_bytes());
        let question = SidrReq {
            request_id: self.comm_id(id),
            pkey: Pkey::DEFAULT,
            service_id,
            private_data: field,
        };
        let transaction = self.new_transaction(id);
        let mad = CmMad { transaction, modifier: 0, message: question.into() };
        let interval = lasts(self.config.response_timeout);
        let retries = self.config.max_retries;
        let conn = self.conn_mut(id)?;
        conn.phase = Phase::Connect;
        conn.state = State::SidrReqSent;
        conn.transaction = transaction;
        conn.patience = Patience { interval, retries };
        self.send_until_answered(id, &mad, now);
        Ok(())
    }

    pub(super) fn on_question(&mut self, mad: &CmMad, ask: &SidrReq, from: &Source, now: Instant) {
        let key = (from.remote, ask.request_id);
        let is_asked = self.questions.contains_key(&key);
        if is_asked || self.answer_again(Over::Question(key.0, key.1), now) {
            return;
        }
        let addresses = IpCmHeader::parse(&ask.private_data).ok();
        let asked = addresses.filter(|addresses| is_ours(addresses, from)).map(|addresses| Asked {
            service: ask.service_id,
            kind: QpKind::Ud,
            addresses,
        });
        let listener = match &asked {
            Some(asked) => self.listener(asked),
            None => Err(Nobody::Unsuited),
        };
        let status = match (listener, &asked) {
            (Ok(listener), Some(asked)) => {
                self.on_good_question(mad, ask, from, (listener, asked));
                return;
            }
            (Err(Nobody::Busy), _) => return,
            (Err(Nobody::Unknown), _) => SidrStatus::UNSUPPORTED,
            _ => SidrStatus::REJECT,
        };
        let answer = SidrRep {
            request_id: ask.request_id,
            status,
            service_id: ask.service_id,
            ..SidrRep::default()
        };
        let outgoing = reply(mad, answer.into(), from);
        self.outbox.push_back(outgoing);
    }

    fn on_good_question(
        &mut self,
        mad: &CmMad,
        ask: &SidrReq,
        from: &Source,
        (listener, asked): (CmId, &Asked),
    ) {
        let Source { device, local, remote } = *from;
        // What a path is needed for here is the way back of the answer.
        let mtu = feroce_wire::PathMtu::Mtu1024;
        let path = Path { device, local, remote, mtu, hop_limit: 64, traffic_class: 0 };
        let peer = Peer {
            comm_id: Some(ask.request_id),
            service: ask.service_id,
            ece: Ece::default(),
            ..Peer::default()
        };
        let id = self.admit(listener, asked, path, peer);
        self.questions.insert((remote, ask.request_id), id);
        if let Some(conn) = self.ids.get_mut(&id) {
            conn.state = State::SidrReqReceived;
            conn.transaction = mad.transaction;
        }
        let data = ask.private_data[IpCmHeader::LEN..].to_vec();
        self.tell(id, EventKind::ConnectRequest, Status::Success, data);
    }

    /// Answers, for [`Endpoint::accept`].
    pub(super) fn answer(
        &mut self,
        id: CmId,
        own: &Parameters,
        data: &[u8],
        now: Instant,
    ) -> Result<(), CmError> {
        let answer = SidrRep {
            status: SidrStatus::SUCCESS,
            qpn: own.qpn,
            qkey: own.qkey,
            private_data: private_data(0, data)?,
            ..SidrRep::default()
        };
        self.take_request(id)?;
        self.send_answer(id, answer, now);
        Ok(())
    }

    /// Says no, for [`Endpoint::reject`].
    pub(super) fn refuse(&mut self, id: CmId, data: &[u8], now: Instant) -> Result<(), CmError> {
        self.take_request(id)?;
        self.refuse_now(id, data, now)
    }

    /// Says no.
    pub(super) fn refuse_now(
        &mut self,
        id: CmId,
        data: &[u8],
        now: Instant,
    ) -> Result<(), CmError> {
        let answer = SidrRep {
            status: SidrStatus::REJECT,
            private_data: private_data(0, data)?,
            ..SidrRep::default()
        };
        self.send_answer(id, answer, now);
        Ok(())
    }

    fn send_answer(&mut self, id: CmId, answer: SidrRep, now: Instant) {
        let Some(conn) = self.ids.get(&id) else { return };
        let answer = SidrRep {
            request_id: conn.peer.comm_id.unwrap_or(0),
            service_id: conn.peer.service,
            ..answer
        };
        let mad = CmMad { transaction: conn.transaction, modifier: 0, message: answer.into() };
        let question = conn.question_key();
        let bytes = self.send(id, &mad);
        let kept = self.ids.get(&id).and_then(|conn| conn.outgoing(bytes));
        if let Some((ip, request)) = question {
            let until = now + self.config.answer_kept;
            self.keep_answer(Over::Question(ip, request), kept, until);
        }
        self.reset(id);
    }

    pub(super) fn on_answer(&mut self, answer: &SidrRep) {
        let id = self.by_comm_id(answer.request_id);
        let Some(id) = id.filter(|id| self.ids[id].state == State::SidrReqSent) else { return };
        if let Some(conn) = self.ids.get_mut(&id) {
            let (qpn, qkey) = (answer.qpn, answer.qkey);
            conn.agreed = Parameters { qpn, qkey, ..Parameters::default() };
        }
        self.reset(id);
        let data = answer.private_data.to_vec();
        let (kind, status) = match answer.status {
            SidrStatus::SUCCESS => (EventKind::Established, Status::Success),
            status => (EventKind::Unreachable, Status::Sidr(status)),
        };
        self.tell(id, kind, status, data);
    }
}
