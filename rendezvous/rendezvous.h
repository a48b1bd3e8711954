/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Internal declarations of the rendezvous layer. This table says which file implements
 * what:
 *
 *     layer    the rendezvous of a context, and its listeners                 listen.c
 *     link     one fabric connection and its handshake                        hello.c
 *     peer     a session: survives its links; numbers messages, keeps those that the
 *              other end has not acknowledged, returns with a new epoch
 *                                                  session.c dial.c stream.c alive.c
 *     rail     further connections of a session, for puts                      rail.c
 *     channel  a name space of keys on a peer                                channel.c
 *     xfer     one half of a rendezvous (a send or a receive), inside the caller's
 *              tern_req                          xfer.c send.c recv.c ids.c cancel.c
 *     proxy    a receive that stands for a receive from any of several peers    any.c
 *     write    puts of a send, in chunks, over links and rails                write.c
 *     pump     continues xfers when there is room, or a credit                 pump.c
 *     stage    staging of an xfer whose memory the fabric does not reach       stage.c
 *     direct   transfers of GPU memory that the fabric reaches                direct.c
 *     lend     GPU memory that the other end's GPU copies directly              lend.c
 *     want     receives that ask for a send that waits for a credit             want.c
 *     window   one-sided access: windows of ours and of the peer
 *                                            window.c remote.c access.c windows.c
 *     record   a message of the peer that waits for our half, or for our answer
 *                                                                            record.c
 *
 * A region (the peer's right to access a range of memory) belongs to a link. On the next
 * link, perhaps of another fabric, regions are announced again (renew.c).
 *
 * All code of this layer runs on the context's thread. docs/protocol.md says how sends
 * and receives are matched.
 */
#ifndef TERN_RENDEZVOUS_RENDEZVOUS_H
#define TERN_RENDEZVOUS_RENDEZVOUS_H

#include "rendezvous/layer.h"
#include "rendezvous/link.h"
#include "rendezvous/peer.h"
#include "rendezvous/rail.h"
#include "rendezvous/stage.h"
#include "rendezvous/xfer.h"

#endif
