// NCCL, found at run time. Functions return an ncclResult_t; a CUresult of making
// the context current is returned negated.
#pragma once
#include <stddef.h>
#include <stdint.h>

enum { Z_NCCL_ID = 128 }; // bytes of an ncclUniqueId
enum { Z_NCCL_NOTHING, Z_NCCL_BUFFERS, Z_NCCL_WINDOWS }; // that can be registered

int z_nccl_open(const char *path, char *why, int why_len);
int z_nccl_version(int *v);
int z_nccl_id(char *id);
int z_nccl_init(uintptr_t ctx, uintptr_t *comm, int ranks, const char *id, int rank);
int z_nccl_state(uintptr_t comm);
int z_nccl_settle(uintptr_t comm, int us);
int z_nccl_all_gather(uintptr_t ctx, uintptr_t comm, uintptr_t stream, uintptr_t in, uintptr_t out, size_t n, int type);
int z_nccl_reduce_scatter(uintptr_t ctx, uintptr_t comm, uintptr_t stream, uintptr_t in, uintptr_t out, size_t n, int type);
int z_nccl_broadcast(uintptr_t ctx, uintptr_t comm, uintptr_t stream, int rank, int ranks, uintptr_t b, size_t n);
int z_nccl_send_parts(uintptr_t ctx, uintptr_t comm, uintptr_t stream, int rank, int ranks, uintptr_t whole, size_t stride, uintptr_t slots, size_t slot, size_t n);
int z_nccl_reduce(uintptr_t ctx, uintptr_t comm, uintptr_t stream, int rank, uintptr_t b, size_t n, int type);
int z_nccl_collect(uintptr_t ctx, uintptr_t comm, uintptr_t stream, int rank, int ranks, uintptr_t whole, uintptr_t slots, size_t slot, size_t n);
int z_nccl_registers(void);
int z_nccl_alloc(uintptr_t ctx, uintptr_t *at, size_t n);
int z_nccl_free(uintptr_t ctx, uintptr_t at);
int z_nccl_register(uintptr_t ctx, uintptr_t comm, uintptr_t at, size_t n, uintptr_t *registration);
int z_nccl_deregister(uintptr_t ctx, uintptr_t comm, uintptr_t registration);
int z_nccl_finalize(uintptr_t ctx, uintptr_t comm);
int z_nccl_destroy(uintptr_t ctx, uintptr_t comm);
int z_nccl_abort(uintptr_t ctx, uintptr_t comm);
const char *z_nccl_text(int code);
const char *z_nccl_last(uintptr_t comm);
