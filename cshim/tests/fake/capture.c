/* capture.c: streams whose work is recorded into a graph instead of run, and what may not be done meanwhile: the rules
 * are those of the documentation of cuThreadExchangeStreamCaptureMode. */
#define _GNU_SOURCE
#include <stdatomic.h>

#include "driver.h"

static _Atomic int global_captures;       /* of the process, in global mode */
static _Atomic unsigned captures_spoiled; /* how often somebody did what may not be */
static __thread int own_captures;         /* of this thread, but for relaxed ones */
static __thread CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

bool fake_spoils_captures(void)
{
	const bool spoils = thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED ? false
			    : thread_mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
				    ? own_captures > 0
				    : own_captures > 0 || atomic_load(&global_captures) > 0;

	if (spoils)
		atomic_fetch_add(&captures_spoiled, 1);
	return spoils;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	const CUstreamCaptureMode before = thread_mode;

	ENTER();
	thread_mode = *mode;
	*mode = before;
	return CUDA_SUCCESS;
}

static void capture_count(CUstreamCaptureMode mode, int change)
{
	own_captures += mode != CU_STREAM_CAPTURE_MODE_RELAXED ? change : 0;
	atomic_fetch_add(&global_captures, mode == CU_STREAM_CAPTURE_MODE_GLOBAL ? change : 0);
}

static CUresult capture_begin(struct CUstream_st *stream, CUgraph graph, CUstreamCaptureMode mode)
{
	if (stream->capture != NULL)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	stream->capture = graph != NULL ? graph : fake_graph_new();
	stream->mode = mode;
	stream->spoiled = atomic_load(&captures_spoiled);
	capture_count(mode, 1);
	return CUDA_SUCCESS;
}

static CUresult capture_end(struct CUstream_st *stream, CUgraph *graph)
{
	const bool spoiled = stream->spoiled != atomic_load(&captures_spoiled);

	if (stream->capture == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*graph = spoiled ? NULL : stream->capture;
	stream->capture = NULL;
	capture_count(stream->mode, -1);
	return spoiled ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture(CUstream hStream)
{
	ENTER();
	return capture_begin(fake_stream(hStream, false), NULL, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult cuStreamBeginCapture_ptsz(CUstream hStream)
{
	ENTER();
	return capture_begin(fake_stream(hStream, true), NULL, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode)
{
	ENTER();
	return capture_begin(fake_stream(hStream, false), NULL, mode);
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream hStream, CUstreamCaptureMode mode)
{
	ENTER();
	return capture_begin(fake_stream(hStream, true), NULL, mode);
}

CUresult cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph hGraph, const CUgraphNode *dependencies,
	const CUgraphEdgeData *dependencyData, size_t numDependencies, CUstreamCaptureMode mode)
{
	(void)dependencies, (void)dependencyData, (void)numDependencies;
	ENTER();
	return capture_begin(fake_stream(hStream, false), hGraph, mode);
}

CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream hStream, CUgraph hGraph, const CUgraphNode *dependencies,
	const CUgraphEdgeData *dependencyData, size_t numDependencies, CUstreamCaptureMode mode)
{
	(void)dependencies, (void)dependencyData, (void)numDependencies;
	ENTER();
	return capture_begin(fake_stream(hStream, true), hGraph, mode);
}

CUresult cuStreamBeginRecaptureToGraph(CUstream hStream, CUstreamCaptureMode mode, CUgraph hGraph,
	CUgraphRecaptureCallback callbackFunc, void *userData)
{
	(void)callbackFunc, (void)userData;
	ENTER();
	return capture_begin(fake_stream(hStream, false), hGraph, mode);
}

CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream hStream, CUstreamCaptureMode mode, CUgraph hGraph,
	CUgraphRecaptureCallback callbackFunc, void *userData)
{
	(void)callbackFunc, (void)userData;
	ENTER();
	return capture_begin(fake_stream(hStream, true), hGraph, mode);
}

CUresult cuStreamEndCapture(CUstream hStream, CUgraph *phGraph)
{
	ENTER();
	return capture_end(fake_stream(hStream, false), phGraph);
}

CUresult cuStreamEndCapture_ptsz(CUstream hStream, CUgraph *phGraph)
{
	ENTER();
	return capture_end(fake_stream(hStream, true), phGraph);
}

static CUresult capturing(struct CUstream_st *stream, CUstreamCaptureStatus *status)
{
	*status = stream->capture != NULL ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
	return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus *captureStatus)
{
	ENTER();
	return capturing(fake_stream(hStream, false), captureStatus);
}

CUresult cuStreamIsCapturing_ptsz(CUstream hStream, CUstreamCaptureStatus *captureStatus)
{
	ENTER();
	return capturing(fake_stream(hStream, true), captureStatus);
}
